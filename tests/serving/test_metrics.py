"""Metrics, read back by Prometheus' own parser."""

import dataclasses

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from wedlm.batching.manager import BatchingManager
from wedlm.batching.scheduler import BatchCounts
from wedlm.serving.metrics import OUTCOMES, ROUTES, Load, Metrics


def families_of(metrics):
    return {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}


def value_of(metrics, name, **labels):
    samples = [sample for family in families_of(metrics).values() for sample in family.samples]
    (value,) = (sample.value for sample in samples if (sample.name, sample.labels) == (name, labels))
    return value


def metrics_of_nothing():
    return Metrics(lambda: Load(BatchCounts(), 0, 0, 0, 0))


def test_counts_are_those_of_the_batch_whenever_they_are_read():
    counts = BatchCounts(steps=1, tokens=2, row_forwards=3, prompt_tokens=4, found_tokens=5)
    metrics = Metrics(lambda: Load(counts, running=6, waiting=7, kept_tokens=8, max_cached_tokens=9))
    names = {
        "steps": "wedlm_forwards_total",
        "tokens": "wedlm_generated_tokens_total",
        "row_forwards": "wedlm_row_forwards_total",
        "prompt_tokens": "wedlm_prompt_tokens_total",
        "found_tokens": "wedlm_found_prompt_tokens_total",
    }
    assert names.keys() == {field.name for field in dataclasses.fields(BatchCounts)}
    for _ in range(2):
        assert {field: value_of(metrics, name) for field, name in names.items()} == dataclasses.asdict(counts)
        counts.tokens += 100
    gauges = ("requests_running", "requests_waiting", "kept_tokens", "cached_tokens_limit")
    assert [value_of(metrics, f"wedlm_{name}") for name in gauges] == [6, 7, 8, 9]


def test_requests_are_counted_by_route_and_outcome():
    metrics = metrics_of_nothing()

    def counted():
        requests = {(route, outcome): 0 for route in ROUTES for outcome in OUTCOMES}
        return {each: value_of(metrics, "wedlm_requests_total", route=each[0], outcome=each[1]) for each in requests}

    expected = {(route, outcome): 0 for route in ROUTES for outcome in OUTCOMES}
    assert counted() == expected  # each is there before its first request
    for number, (route, outcome) in enumerate(expected):
        for _ in range(number):
            metrics.observe_end(route, outcome, 1.0)
        expected[route, outcome] = number
    assert counted() == expected


def test_times_are_those_of_whole_answers():
    metrics = metrics_of_nothing()
    for seconds in (0.06, 0.06, 4, 100):
        metrics.observe_first_token(seconds)
    for outcome, seconds in (("ok", 0.7), ("ok", 1000), ("refused", 0.001), ("cancelled", 2), ("failed", 2)):
        metrics.observe_end(ROUTES[0], outcome, seconds)
    assert value_of(metrics, "wedlm_first_token_seconds_count") == 4
    assert value_of(metrics, "wedlm_first_token_seconds_bucket", le="0.05") == 0
    assert value_of(metrics, "wedlm_first_token_seconds_bucket", le="0.1") == 2
    assert value_of(metrics, "wedlm_first_token_seconds_bucket", le="60.0") == 3
    assert value_of(metrics, "wedlm_request_seconds_count") == 2
    assert value_of(metrics, "wedlm_request_seconds_sum") == 1000.7
    assert value_of(metrics, "wedlm_request_seconds_bucket", le="1.0") == 1


def test_every_name_has_the_prefix_a_sentence_and_a_type():
    for name, family in families_of(metrics_of_nothing()).items():
        assert name.startswith("wedlm_") and family.documentation.endswith(".") and family.type != "unknown"


def test_two_servers_of_one_process_share_nothing():
    before = set(REGISTRY._names_to_collectors)
    one, other = metrics_of_nothing(), metrics_of_nothing()
    one.observe_end(ROUTES[0], "ok", 1.0)
    assert value_of(other, "wedlm_requests_total", route=ROUTES[0], outcome="ok") == 0
    assert set(REGISTRY._names_to_collectors) == before


def test_the_load_is_that_of_a_manager(checkpoint):
    _, model, tokenizer = checkpoint
    manager = BatchingManager(model)
    manager.max_cached_tokens = 1024
    metrics = Metrics(lambda: Load.of(manager))
    assert value_of(metrics, "wedlm_generated_tokens_total") == value_of(metrics, "wedlm_kept_tokens") == 0
    tokens = tokenizer("the cat sat on the mat").input_ids
    manager.start()
    try:
        for _ in range(2):
            manager.add_request(tokens, max_new_tokens=9)
            output = manager.get_result(timeout=60)
            assert len(output.generated_tokens) == 9
        assert value_of(metrics, "wedlm_generated_tokens_total") == 18
        assert value_of(metrics, "wedlm_prompt_tokens_total") == 2 * len(tokens)
        assert value_of(metrics, "wedlm_found_prompt_tokens_total") == len(tokens) - 1
        assert len(tokens) < value_of(metrics, "wedlm_kept_tokens") <= 1024
        assert value_of(metrics, "wedlm_cached_tokens_limit") == 1024
        assert value_of(metrics, "wedlm_requests_running") == value_of(metrics, "wedlm_requests_waiting") == 0
    finally:
        manager.stop(hard_stop=True)
    assert value_of(metrics, "wedlm_generated_tokens_total") == 18

"""Metrics, read back by Prometheus' own parser, and the line of the log for each request."""

import logging
import time

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from serving_client import idle_manager

from wedlm.batching.manager import BatchingManager
from wedlm.batching.scheduler import BatchCounts
from wedlm.serving.server_metrics import OUTCOMES, ROUTES, Metrics, RequestRecord


def value_of(metrics, name, **labels):
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    samples = [sample for family in families for sample in family.samples]
    (value,) = (sample.value for sample in samples if (sample.name, sample.labels) == (name, labels))
    return value


def test_counts_are_those_of_the_manager_whenever_they_are_read():
    manager = idle_manager()
    manager.counts = BatchCounts(steps=1, tokens=2, row_forwards=3, prompt_tokens=4, found_tokens=5)
    manager.running, manager.waiting, manager.max_cached_tokens = {1: 1}, {2: 2, 3: 3}, 9
    metrics = Metrics(manager)
    counters = ("forwards", "generated_tokens", "row_forwards", "prompt_tokens", "found_prompt_tokens")
    assert [value_of(metrics, f"wedlm_{name}_total") for name in counters] == [1, 2, 3, 4, 5]
    gauges = ("requests_running", "requests_waiting", "kept_tokens", "cached_tokens_limit")
    assert [value_of(metrics, f"wedlm_{name}") for name in gauges] == [1, 2, 0, 9]
    manager.counts.tokens += 100
    assert value_of(metrics, "wedlm_generated_tokens_total") == 102


def test_the_cached_tokens_are_those_of_a_manager(checkpoint):
    _, model, tokenizer = checkpoint
    manager = BatchingManager(model)
    manager.max_cached_tokens = 1024
    metrics = Metrics(manager)
    tokens = tokenizer("the cat sat on the mat").input_ids
    manager.start()
    try:
        for _ in range(2):
            manager.add_request(tokens, max_new_tokens=9)
            manager.get_result(timeout=60)
        assert value_of(metrics, "wedlm_found_prompt_tokens_total") == len(tokens) - 1
        assert len(tokens) < value_of(metrics, "wedlm_kept_tokens") <= 1024
    finally:
        manager.stop(hard_stop=True)
    assert value_of(metrics, "wedlm_generated_tokens_total") == 18


@pytest.mark.parametrize(
    "changes, outcome",
    [
        ({"status": 200}, "ok"),
        ({"status": 429}, "refused"),
        ({"status": 500}, "failed"),
        ({"status": None}, "failed"),
        ({"status": 200, "error": "The server is ending."}, "failed"),
        ({"status": 200, "has_left": True}, "cancelled"),
        ({"status": 200, "has_left": True, "is_whole": True}, "ok"),
    ],
)
def test_outcomes_are_counted_and_logged(changes, outcome, caplog):
    record, metrics = RequestRecord(**{"method": "POST", "path": ROUTES[1], **changes}), Metrics(idle_manager())
    record.begin -= 100
    with caplog.at_level(logging.INFO, "wedlm.requests"):
        record.close(metrics)
    for each in OUTCOMES:  # Each is there before its first request.
        assert value_of(metrics, "wedlm_requests_total", route=ROUTES[1], outcome=each) == (each == outcome)
        assert value_of(metrics, "wedlm_requests_total", route=ROUTES[0], outcome=each) == 0
    assert value_of(metrics, "wedlm_request_seconds_count") == (outcome == "ok")
    assert value_of(metrics, "wedlm_request_seconds_bucket", le="60.0") == 0
    assert value_of(metrics, "wedlm_request_seconds_bucket", le="120.0") == (outcome == "ok")
    assert len(caplog.messages) == 1 and f" {outcome} 100." in caplog.messages[0]


def test_the_first_token_of_a_stream():
    record, metrics = RequestRecord("POST", ROUTES[0], 200, prompt_tokens=12), Metrics(idle_manager())
    record.add_tokens(0)
    assert record.first_token_seconds is None
    record.begin = time.monotonic() - 4
    record.add_tokens(3)
    first = record.first_token_seconds
    record.add_tokens(4)
    assert record.first_token_seconds == first
    record.close(metrics)
    assert value_of(metrics, "wedlm_first_token_seconds_bucket", le="3.0") == 0
    assert value_of(metrics, "wedlm_first_token_seconds_bucket", le="5.0") == 1
    line = record.line(1.5)
    assert line.startswith("POST /v1/chat/completions 200 ok 1.500 s, first token after 4.0")
    assert line.endswith("12 prompt tokens, 7 new tokens")


def test_a_line_is_one_line():
    """Anybody can write into the path."""
    path = "/\n2026-01-01 POST /v1/chat/completions 200 \x1b[31m" + "x" * 1000
    line = RequestRecord("GET", path, 404).line(0)
    assert "\n" not in line and "\x1b" not in line and len(line) < 200


def test_health_is_not_logged_while_all_is_well(caplog):
    with caplog.at_level(logging.INFO, "wedlm.requests"):
        RequestRecord("GET", "/health", 200).close(Metrics(idle_manager()))
        assert not caplog.messages
        RequestRecord("GET", "/health", 503).close(Metrics(idle_manager()))
        assert len(caplog.messages) == 1

"""Requests that join and leave a running batch write what generate() writes for each of them alone."""

import copy

import pytest
import torch
from helpers import CHECKPOINTS, EOS, PAD, PROMPTS, load
from hypothesis import given
from hypothesis import strategies as st
from recorded_graph import captures_on_cpu
from stock_families import FITTING, stock
from tiers import property_settings, slow_but
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.continuous_batching.requests import RequestState

from wedlm.batching import scheduler, shared_cache
from wedlm.batching.request import Request
from wedlm.batching.scheduler import MAX_PREFILLS, Scheduler, scores_bytes
from wedlm.batching.settings_group import merged
from wedlm.batching.shared_cache import SharedCache
from wedlm.generation import plan
from wedlm.generation.model_kind import ModelKind
from wedlm.generation.sequences import Sequences

MODEL = load(CHECKPOINTS / "q3").double()  # where no rounding decides
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}
TEXT = [token for prompt in PROMPTS for token in prompt] * 3
VERIFIED = {"decoding": "verified", "eos_token_id": None, "max_new_tokens": 20}
ONE_BY_ONE = {"decoding": "autoregressive", "eos_token_id": None}
REFUSAL = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."


class Favour(LogitsProcessor):
    """Favours a token; with `fails_at`, fails when the text has so many tokens."""

    def __init__(self, token=7, fails_at=None):
        self.token, self.fails_at, self.lengths = token, fails_at, []

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] == self.fails_at:
            raise KeyError("a processor of the user")
        self.lengths.append(input_ids.shape[1])
        scores[:, self.token] += 2
        return scores


def request_of(tokens, seed=0, name="", model=MODEL, fixed_shapes=False, captures=False, **settings):
    state, settings = RequestState(name, tokens), {**SPECIAL, **settings}
    return Request.from_settings(model, state, None, settings, seed, fixed_shapes, captures)


def alone(tokens, seed=0, model=MODEL, **settings):
    """The new tokens of a call of generate() on this row alone."""
    torch.manual_seed(seed)
    inputs = {"input_ids": torch.tensor([tokens]), "attention_mask": torch.ones(1, len(tokens), dtype=torch.long)}
    return model.generate(**inputs, **{**SPECIAL, **settings})[0, len(tokens) :].tolist()


def run(batch, requests=(), arrivals=None, cancelled=None):
    """Takes steps until all requests have ended; returns the tokens and errors of each, by its index or name."""
    arrivals, cancelled = arrivals or [0] * len(requests), cancelled or {}
    for index, request in enumerate(requests):
        request.state.request_id = index
    tokens, errors, step, waiting = {}, {}, 0, list(requests)
    while waiting or batch.cached_requests or batch.prefilling:
        while waiting and arrivals[waiting[0].request_id] <= step and batch.can_admit(waiting[0]):
            batch.add(waiting.pop(0))
        for index in [index for index, at in cancelled.items() if at == step]:
            batch.remove({requests[index]})
            waiting = [request for request in waiting if request.request_id != index]
        for output in batch.step():
            tokens.setdefault(output.request.request_id, []).extend(output.tokens)
            if output.error is not None:
                errors[output.request.request_id] = output.error
        check(batch)
        step += 1
    return tokens, errors


def check(batch):
    """What must hold between two steps."""
    requests = batch.cached_requests
    rows = sorted(request.cache_row for request in requests)
    assert rows == list(range(len(rows))) == list(range(batch.cache.num_rows))
    for request in requests:
        assert batch.cache.all_lengths[request.cache_row] == request.num_committed
        assert batch.cache.budgets[request.cache_row] == request.budget
        assert request.budget.text >= request.num_committed and request.budget.queries >= request.num_queries
    assert batch.cache.num_tokens + batch.prefix_cache.num_tokens <= batch.max_cached_tokens
    if not requests and batch.captured is None:
        assert batch.cache.layers == []


def names_of(outputs):
    return [output.request.request_id for output in outputs]


prompts = st.builds(
    lambda begin, length, more: TEXT[begin : begin + length] + more,
    st.sampled_from([0, 0, 3]),  # so that many begin alike
    st.integers(1, 40),
    st.lists(st.integers(3, 149), max_size=3),
)
decodings = st.one_of(
    st.builds(
        lambda size, threshold: {"decoding": "streaming", "window_size": size, "entropy_threshold": threshold},
        st.integers(1, 9),
        st.sampled_from([None, 0.4, 3.0]),
    ),
    st.builds(
        lambda size: {"decoding": "blockwise", "window_size": size, "entropy_threshold": 2.0}, st.integers(1, 6)
    ),
    st.builds(
        lambda size, cost: {"decoding": "verified", "window_size": size, "query_cost": cost},
        st.sampled_from([None, 1, 5, 16]),
        st.sampled_from([None, 0, 0.02, 0.5]),
    ),
    st.just({"decoding": "autoregressive"}),
    st.just({"decoding": "verified", "window_size": 6, "prompt_lookup_num_tokens": 3}),
)
samplings = st.sampled_from(
    [{}, {}, {"do_sample": True, "top_k": 20}, {"do_sample": True, "temperature": 1.5}, {"repetition_penalty": 1.3}]
)


@st.composite
def drawn_requests(draw):
    settings = {**draw(decodings), **draw(samplings), "max_new_tokens": draw(st.integers(1, 24))}
    if draw(st.booleans()):
        settings["eos_token_id"] = draw(st.sampled_from([EOS, [EOS, 30, 40, 50, 60]]))
    if draw(st.integers(0, 3)) == 0:
        settings["logits_processor"] = LogitsProcessorList([Favour(draw(st.integers(3, 149)))])
    return draw(prompts), draw(st.integers(0, 99)), settings


def requests_from(drawn, captures=False):
    return [request_of(tokens, seed, captures=captures, **settings) for tokens, seed, settings in drawn]


def assert_as_alone(drawn, got, cut_short):
    """Each request has the text that it writes alone, or the beginning of it."""
    for i, (tokens, seed, settings) in enumerate(drawn):
        text, expected = got.get(i, []), alone(tokens, seed, **settings)
        assert text == (expected[: len(text)] if i in cut_short else expected)


@given(st.lists(drawn_requests(), min_size=1, max_size=5), st.data())
@property_settings(45, deadline=None)
def test_every_request_writes_what_it_writes_alone(drawn, data):
    captures = data.draw(st.booleans(), "captures")
    requests = requests_from(drawn, captures)
    arrivals = [data.draw(st.integers(0, 12), "arrival") for _ in drawn]
    ends = [data.draw(st.one_of(st.none(), st.none(), st.integers(0, 20)), "end") for _ in drawn]
    cancelled = {i: end for i, end in enumerate(ends) if end is not None}
    most = max(sum(request.budget) for request in requests)
    room = data.draw(st.integers(most, 6 * most), "room")
    chunk_size = data.draw(st.sampled_from([1, 7, 64]), "chunk")
    batch = Scheduler(MODEL, room, chunk_size, data.draw(st.booleans()), captures=captures)
    with captures_on_cpu():
        got, errors = run(batch, requests, arrivals, cancelled)
    assert not errors
    assert_as_alone(drawn, got, cut_short=cancelled)


# Kinds of attention, of layers and of caches; test_models.py has a batch of every family.
VARIED = ("Llama", "Qwen2, some layers sliding", "Mixtral, sliding", "Gemma2", "Gemma3", "GPT2", "OPT", "GptOss")
VARIED += ("DeepseekV3",)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", slow_but(VARIED, FITTING))
def test_requests_of_a_stock_model_share_forwards_and_write_what_transformers_writes(name):
    model = stock(name)
    if not any("experts" in module for module, _ in model.named_modules()):  # They have no kernel for float64.
        model = copy.deepcopy(model).double()
    captures, text = name != "Llama", [3 + token % 7 * (1 + token % 5) for token in range(90)]
    batch = Scheduler(model, 3_000, 7, captures=captures)
    drawn = [
        (text[:30], {}),
        (text[:33], {"do_sample": True, "temperature": 1.2}),
        (text[:3], {"repetition_penalty": 1.3}),
        (text[40:80], {}),
        (text[2:8], {}),
    ]
    ours = [{"window_size": 4}, {"query_cost": 0}, {}, {}, {"decoding": "autoregressive"}]
    requests = [
        request_of(tokens, 5, model=model, captures=captures, max_new_tokens=16, **settings, **more)
        for (tokens, settings), more in zip(drawn, ours, strict=True)
    ]
    with captures_on_cpu() as graphs:
        got, errors = run(batch, requests, arrivals=[0, 1, 1, 6, 7])
    assert not errors
    assert bool(graphs) == captures
    expected = [alone(tokens, 5, model, max_new_tokens=16, **settings) for tokens, settings in drawn]
    assert [got[i] for i in range(5)] == expected
    assert batch.counts.row_forwards > 1.5 * batch.counts.steps and batch.counts.found_tokens >= 29


def test_requests_one_after_another_take_the_same_graphs():
    """The memory of the cache stays where it is. Weights in another dtype take other memory."""
    model = copy.deepcopy(MODEL)
    batch, numbers = Scheduler(model, 3_000, 64, captures=True), []
    with captures_on_cpu() as graphs:
        for dtype in (torch.float64, torch.float64, torch.float64, torch.float32):
            model.to(dtype)
            got, errors = run(batch, [request_of(PROMPTS[0], model=model, captures=True, **VERIFIED)])
            assert not errors and got[0] == alone(PROMPTS[0], model=model, **VERIFIED)
            numbers.append(len(graphs))
    assert 0 < numbers[0] == numbers[1] == numbers[2] < numbers[3]


def test_graphs_go_before_a_request_fails(monkeypatch):
    """Where memory is refused."""
    batch = Scheduler(MODEL, 3_000, 64, use_prefix_cache=False, captures=True)
    with captures_on_cpu():
        batch.add(request_of(PROMPTS[0], captures=True, **VERIFIED))
        for _ in range(4):
            batch.step()
        assert len(batch.captured.graphs) > 0
        assert batch.evict(batch.cached_requests, MemoryError()) == [] and len(batch.captured.graphs) == 0
        batch.step()
        assert len(batch.captured.graphs) == 0, "else the step could run out of memory again, for ever"
        (failed,) = batch.evict(batch.cached_requests, MemoryError())
        assert failed.has_ended and not batch.cached_requests


def test_graphs_go_before_a_prompt_fails(monkeypatch):
    batch, prefill, tries = Scheduler(MODEL, 3_000, 64, use_prefix_cache=False, captures=True), Scheduler.prefill, []
    with captures_on_cpu():
        batch.add(request_of(PROMPTS[0], name="first", captures=True, **VERIFIED))
        for _ in range(4):
            batch.step()

        def refused_while_there_are_graphs(self, requests):
            tries.append(len(self.captured.graphs))
            if tries[-1] > 0:
                raise RuntimeError(REFUSAL)
            return prefill(self, requests)

        monkeypatch.setattr(Scheduler, "prefill", refused_while_there_are_graphs)
        batch.add(request_of(PROMPTS[1], name="second", captures=True, **VERIFIED))
        outputs = batch.step()
    assert [each.error for each in outputs] == [None] * len(outputs) and "second" in names_of(outputs)
    assert tries[0] > 0 == tries[1] and len(tries) == 2


@pytest.mark.parametrize("model", [MODEL, stock("Llama")], ids=["WeDLM", "stock"])
def test_special_tokens_of_a_prompt_are_text(model):
    end, settings = model.generation_config.eos_token_id, {**VERIFIED, "model": model}
    asked = [([PAD, 5, 6], PAD), ([5, PAD, PAD, 6], PAD), ([5, 6, PAD], PAD), ([end, 5, end], end), ([7, 5, 7], 7)]
    requests = [request_of(tokens, pad_token_id=pad, **settings) for tokens, pad in asked]
    got, errors = run(Scheduler(model, 2_000, 64), requests)
    assert not errors
    assert [got[i] for i in range(5)] == [alone(tokens, pad_token_id=pad, **settings) for tokens, pad in asked]


def test_requests_of_equal_settings_share_a_group_and_all_requests_a_forward(monkeypatch):
    batch, widths, forward = Scheduler(MODEL, 10_000, 64), [], MODEL.model.forward
    watched = lambda **given: widths.append(len(given["input_ids"])) or forward(**given)  # noqa: E731
    monkeypatch.setattr(MODEL.model, "forward", watched)
    for i in range(3):
        batch.add(request_of(PROMPTS[i][:9], **{**VERIFIED, "max_new_tokens": 30 + i}))
    batch.add(request_of(PROMPTS[3][:9], **VERIFIED, do_sample=True))
    batch.step()
    batch.step()
    assert [len(group.requests) for group in batch.groups] == [3, 1] and widths[-1] == 4


@pytest.mark.parametrize(("num_waiting", "most"), [(1, 1), (2, 2), (MAX_PREFILLS + 5, MAX_PREFILLS)])
def test_decoding_waits_for_a_chunk_of_each_waiting_prompt(num_waiting, most):
    batch = Scheduler(MODEL, 100_000, 16)
    batch.add(request_of(TEXT[:4], name="short", **ONE_BY_ONE, max_new_tokens=200))
    batch.step()
    for i in range(num_waiting):
        batch.add(request_of(TEXT[i : i + 150], name=i, **ONE_BY_ONE, max_new_tokens=5))
    waited = [0]
    while len(batch.prefilling) == num_waiting:
        has_decoded = "short" in names_of(batch.step())
        waited += [0] if has_decoded else [waited.pop() + 1]
    assert max(waited) == most - 1


def test_a_waiting_prompt_is_looked_up_once(monkeypatch):
    batch, looked_up, look_up = Scheduler(MODEL, 100_000, 16), [], Scheduler.cached_prefix
    watched = lambda self, request, **more: looked_up.append(request.prompt_length) or look_up(self, request)  # noqa: E731
    monkeypatch.setattr(Scheduler, "cached_prefix", watched)
    for length in (30, 4, 31, 5, 32, 6, 33, 7, 8):
        batch.add(request_of(TEXT[:length], decoding="verified", max_new_tokens=5))
    (first,) = batch.next_prefills()
    assert first.prompt_length == 30 and sorted(looked_up) == sorted(set(looked_up))
    looked_up.clear()
    assert [each.prompt_length for each in batch.next_prefills()] == [4, 5] and 8 not in looked_up


def test_a_query_costs_what_it_adds_to_a_forward_over_all_rows(monkeypatch):
    batch, widths, priced = Scheduler(MODEL, 10_000, 64), {}, []
    cost_of = plan.relative_cost
    monkeypatch.setattr(plan, "relative_cost", lambda *given: priced.append(given) or cost_of(*given))
    for i, query_cost in enumerate((0, 0, 0.04, 0.04, 9)):
        more = {"max_new_tokens": 40, "window_size": 8, "query_cost": query_cost}
        batch.add(request_of(TEXT[: 5 + i], **{**VERIFIED, **more}))
    while batch.cached_requests or batch.prefilling:
        num_rows, has_joined = len(batch.cached_requests), not batch.prefilling
        priced.clear()
        batch.step()
        if has_joined:
            assert {rows for _, rows in priced} == {num_rows}
        for group in batch.groups:
            widths.setdefault(group.settings.rule.query_cost, []).extend(each.num_queries for each in group.requests)
    assert max(widths[0]) > max(widths[0.04]) >= max(widths[9]) == 1


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_request_that_leaves_takes_only_its_own_draws_along(at):
    """A group has drawn for slots that are still to be filled."""
    settings = {**VERIFIED, "do_sample": True, "window_size": 8, "query_cost": 0}
    drawn = [(TEXT[i : i + 9], i, settings) for i in range(4)]
    got, errors = run(Scheduler(MODEL, 10_000, 64), requests_from(drawn), cancelled={1: at})
    assert not errors
    assert_as_alone(drawn, got, cut_short={1})


def test_a_request_whose_callback_fails_ends_alone():
    requests = [
        request_of(TEXT[:5], **VERIFIED),
        request_of(TEXT[:8], **VERIFIED, logits_processor=LogitsProcessorList([Favour(fails_at=12)])),
        request_of(TEXT[:6], **VERIFIED, suppress_tokens=list(range(160))),
    ]
    got, errors = run(Scheduler(MODEL, 10_000, 64), requests)
    assert got[0] == alone(TEXT[:5], **VERIFIED)
    assert "a processor of the user" in str(errors[1]) and "No token has a finite score" in str(errors[2])


def test_a_cached_prefix_is_not_prefilled_again():
    batch, first = Scheduler(MODEL, 2_000, 64), TEXT[:30]
    got, _ = run(batch, [request_of(first, **VERIFIED)])
    assert batch.counts.found_tokens == 0 and batch.counts.prompt_tokens == 30
    turn = first + got[0] + [5, 6, 7]
    again, _ = run(batch, [request_of(turn, **VERIFIED)])
    assert again[0] == alone(turn, **VERIFIED)
    assert 30 < batch.counts.found_tokens <= 50 and batch.counts.prompt_tokens == 30 + 53
    batch.add(request_of(first + [9], **VERIFIED))  # a request that is running is found as well
    batch.step()
    before = batch.counts.found_tokens
    batch.prefix_cache.shrink(0)
    batch.add(request_of(first + [9, 10], **VERIFIED))
    batch.step()
    assert batch.counts.found_tokens == before + 31


def test_no_prompt_is_padded_behind_a_cached_beginning_beyond_all_texts():
    batch = Scheduler(MODEL, 2_000, 64)
    run(batch, [request_of(TEXT[:39], **{**VERIFIED, "max_new_tokens": 1})])
    for tokens in (TEXT[:40], TEXT[5:35]):  # one token behind 39 cached ones, and 30 without any
        batch.add(request_of(tokens, **{**VERIFIED, "max_new_tokens": 1}))
    assert [request.prompt_length for request in batch.next_prefills()] == [40]


def test_keys_from_before_other_weights_are_not_cached():
    batch = Scheduler(MODEL, 2_000, 64)
    batch.add(request_of(TEXT[:30], **VERIFIED))
    batch.step()
    batch.clear_prefix_cache()
    run(batch)
    assert not batch.prefix_cache.texts and batch.counts.tokens == 20


def test_a_text_that_ends_with_its_prefill_is_cached():
    batch = Scheduler(MODEL, 2_000, 64)
    batch.add(request_of(TEXT[5:9], **VERIFIED))
    batch.step()
    batch.add(request_of(TEXT[:30], **{**VERIFIED, "max_new_tokens": 1}))
    batch.step()
    (text,) = batch.prefix_cache.texts
    assert text.tokens == TEXT[:30] and text.layers[0][0].shape[:3] == (1, 2, 30)


def test_a_text_is_cached_where_a_longer_request_has_left_its_memory():
    batch = Scheduler(MODEL, 1_000, 64)
    long = request_of(TEXT[:200], **ONE_BY_ONE, max_new_tokens=250)
    batch.add(long)
    batch.add(request_of(TEXT[1:9], name="stays", **ONE_BY_ONE, max_new_tokens=200))
    for _ in range(9):
        batch.step()
    batch.remove([long])
    assert batch.cache.num_tokens > 900
    batch.add(request_of(TEXT[:90], **ONE_BY_ONE, max_new_tokens=2))
    while not batch.prefix_cache.texts:
        batch.step()
        check(batch)
    assert [text.tokens[:90] for text in batch.prefix_cache.texts] == [TEXT[:90]]


def test_callbacks_are_not_called_again_where_a_prefill_has_failed(monkeypatch):
    favour = Favour()
    callbacks = LogitsProcessorList([favour])
    requests = [request_of(TEXT[:6], **VERIFIED), request_of(TEXT[:5], **VERIFIED, logits_processor=callbacks)]
    calls = []

    def merged_once(groups):
        calls.append(len(groups))
        if len(calls) == 2:  # behind the first step of both
            raise MemoryError("no room")
        return merged(groups)

    monkeypatch.setattr(scheduler, "merged", merged_once)
    got, errors = run(Scheduler(MODEL, 10_000, 64), requests)
    assert got[0] == alone(TEXT[:6], **VERIFIED) and str(errors[1]) == "no room" and 0 not in errors
    assert len(set(favour.lengths)) == len(favour.lengths) > 0


def refusing(function, refused):
    """A function that finds no memory in its calls of these numbers, where `refused` is a set, or where it says so."""
    calls = []

    def wrapped(*arguments, **named):
        calls.append(None)
        if len(calls) in refused if isinstance(refused, set) else refused(*arguments):
            raise RuntimeError(REFUSAL)
        return function(*arguments, **named)

    return wrapped


def test_where_a_forward_finds_no_memory_the_longest_requests_fail(monkeypatch):
    requests = [request_of(TEXT[:5], **{**VERIFIED, "max_new_tokens": number}) for number in (12, 30, 20, 9)]
    many = refusing(ModelKind.forward, lambda kind, queries, *_: len(queries.input_ids) > 2)
    monkeypatch.setattr(ModelKind, "forward", many)
    got, errors = run(Scheduler(MODEL, 10_000, 5), requests)
    assert {str(error) for error in errors.values()} == {REFUSAL} and set(errors) == {1, 2}
    assert all(got[i] == alone(TEXT[:5], **{**VERIFIED, "max_new_tokens": n}) for i, n in ((0, 12), (3, 9)))


@given(
    st.lists(drawn_requests(), min_size=2, max_size=4), st.sampled_from(["allocate", "forward", "cache"]), st.data()
)
@property_settings(40, deadline=None)
def test_where_memory_is_refused_no_text_is_another_one(drawn, where, data):
    refused = data.draw(st.sets(st.integers(1, 12), min_size=1), "refused")
    requests = requests_from(drawn)
    arrivals = [data.draw(st.integers(0, 12), "arrival") for _ in drawn]
    batch = Scheduler(MODEL, 4 * max(sum(request.budget) for request in requests), 64)
    with pytest.MonkeyPatch.context() as patch:
        if where == "cache":
            patch.setattr(SharedCache, "entries_of", refusing(SharedCache.entries_of, lambda *_: True))
            patch.setattr(batch, "cached_prefix", lambda *_, **__: (0, []))
        elif where == "allocate":
            patch.setattr(shared_cache, "zeros_like_states", refusing(shared_cache.zeros_like_states, refused))
        else:
            patch.setattr(ModelKind, "forward", refusing(ModelKind.forward, refused))
        got, errors = run(batch, requests, arrivals)
    assert {str(error) for error in errors.values()} <= {REFUSAL}
    assert not (errors and where == "cache")  # A text that cannot be cached fails nobody.
    assert_as_alone(drawn, got, cut_short=errors)


@given(
    st.lists(drawn_requests(), min_size=1, max_size=3), st.sampled_from(["choose", "ended", "commit"]),
    st.integers(1, 6),
)  # fmt: skip
@property_settings(20, deadline=None)
def test_the_prefix_cache_goes_before_a_request_fails(drawn, where, when):
    batch = Scheduler(MODEL, 10_000, 64)
    run(batch, [request_of(TEXT[:9], eos_token_id=None, max_new_tokens=4)])
    requests, calls, texts = requests_from(drawn), [], batch.prefix_cache.texts
    with pytest.MonkeyPatch.context() as patch:
        refused = lambda *_: calls.append(None) or (len(calls) >= when and texts)  # noqa: E731
        if where == "ended":
            patch.setattr(Sequences, where, refusing(Sequences.ended, refused))
        for call in (request.call for request in requests if where != "ended"):
            function = refusing(getattr(call.strategy, where), refused)
            call.strategy = call.strategy._replace(**{where: function})
        got, errors = run(batch, requests)
    assert set(errors) <= {i for i, request in enumerate(requests) if request.call.has_callbacks}
    assert_as_alone(drawn, got, cut_short=errors)


def test_noise_and_scores_count_before_a_request_is_admitted():
    drawn = {"decoding": "streaming", "window_size": 8, "max_new_tokens": 40, "do_sample": True}
    wide = [request_of(TEXT[:5], **drawn) for _ in range(3)]
    narrow = request_of(TEXT[:5], **drawn | {"window_size": 2, "do_sample": False})
    of_wide = wide[0].noise_bytes + scores_bytes(MODEL, 16)
    assert wide[0].noise_bytes == 17 * 160 * 4 and narrow.noise_bytes == 0
    batch = Scheduler(MODEL, 10_000, 64, max_work_bytes=2 * of_wide)
    for number, request in enumerate(wide[:2], 1):
        assert batch.can_admit(request)
        batch.add(request)
        assert batch.work_bytes_with() == number * of_wide
        batch.step()
        assert batch.work_bytes_with() == number * of_wide
    assert not batch.can_admit(wide[2]) and not batch.can_admit(narrow)
    batch.remove(wide[:1])
    assert batch.can_admit(narrow)


@pytest.mark.parametrize("settings", [{"decoding": "streaming"}, {"decoding": "verified", "do_sample": True}])
def test_with_fixed_shapes_equal_requests_get_one_text_in_bfloat16(settings, monkeypatch):
    """Whoever else is there, and whenever they come: forwards over several rows round otherwise."""
    model, num_rows = load(CHECKPOINTS / "q3").bfloat16(), set()
    more = {**settings, "eos_token_id": None, "max_new_tokens": 16, "model": model, "fixed_shapes": True}
    asked = [each for i in range(3) for each in ((TEXT[:20], 3), (TEXT[i : i + 4 + 17 * i], i))]
    requests, forward = [request_of(tokens, seed, **more) for tokens, seed in asked], model.model.forward
    watched = lambda **given: num_rows.add(len(given["input_ids"])) or forward(**given)  # noqa: E731
    monkeypatch.setattr(model.model, "forward", watched)
    got, errors = run(Scheduler(model, 20_000, 64, fixed_shapes=True), requests, [0, 1, 1, 2, 5, 9])
    assert not errors and num_rows == {1} and len({tuple(got[i]) for i in range(0, 6, 2)}) == 1


def test_a_request_that_cannot_join_leaves_the_others_as_they_are(monkeypatch):
    batch = Scheduler(MODEL, 10_000, 64)
    batch.add(request_of(TEXT[:5], name="a", **VERIFIED))
    batch.step()
    with monkeypatch.context() as patch:
        patch.setattr("wedlm.batching.settings_group.joined", lambda states: 1 / 0)
        batch.add(request_of(TEXT[:9], name="b", **VERIFIED))
        assert names_of(each for each in batch.step() if each.error is not None) == ["b"]
    written = [token for request in batch.cached_requests for token in request.tokens[5:]]
    got, errors = run(batch)
    assert not errors and written + got["a"] == alone(TEXT[:5], **VERIFIED)

"""Rows that join and leave a running batch write what generate() writes for each of them alone."""

import pytest
import torch
from helpers import CHECKPOINTS, EOS, PAD, PROMPTS, load
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings
from transformers import LogitsProcessor, LogitsProcessorList

from wedlm.batching import running_batch, shared_cache
from wedlm.batching.prepared_call import prepare
from wedlm.batching.running_batch import MOST_PREFILLS, RunningBatch, scores_bytes
from wedlm.batching.settings_group import merged
from wedlm.batching.shared_cache import SharedCache
from wedlm.generation import verified
from wedlm.generation.streaming import StreamingWindow
from wedlm.generation.verified import VerifiedWindow

MODEL = load(CHECKPOINTS / "q3").double()  # where no rounding decides
SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}
TEXT = [token for prompt in PROMPTS for token in prompt]


class Favour(LogitsProcessor):
    """Favours a token; with `fails_at`, fails when the text has so many tokens."""

    def __init__(self, token=7, fails_at=None):
        self.token, self.fails_at = token, fails_at

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] == self.fails_at:
            raise KeyError("a processor of the user")
        scores[:, self.token] += 2
        return scores


def call_of(tokens, seed=0, **settings):
    return prepare(MODEL, tokens, None, {**SPECIAL, **settings}, seed)


def alone(tokens, seed=0, **settings):
    """The new tokens of a call of generate() on this row alone."""
    torch.manual_seed(seed)
    return MODEL.generate(torch.tensor([tokens]), **{**SPECIAL, **settings})[0, len(tokens) :].tolist()


def run(batch, calls, arrivals=None, cancelled=None):
    """Takes steps until all calls have ended: the tokens, errors and numbers of steps by place."""
    arrivals, cancelled = arrivals or [0] * len(calls), cancelled or {}
    tokens, errors, step, waiting = {}, {}, 0, list(enumerate(calls))
    while waiting or batch.num_rows:
        while waiting and arrivals[waiting[0][0]] <= step and batch.can_admit(waiting[0][1]):
            batch.add(*waiting.pop(0))
        for name in [name for name, at in cancelled.items() if at == step]:
            batch.drop(name)
            waiting = [each for each in waiting if each[0] != name]
        for progress in batch.step():
            tokens.setdefault(progress.name, []).extend(progress.tokens)
            if progress.error is not None:
                errors[progress.name] = progress.error
        check(batch)
        step += 1
    return tokens, errors


def check(batch):
    """What must hold between two steps."""
    rows = batch.placed_rows
    assert sorted(row.place for row in rows) == list(range(len(rows))) == list(range(batch.cache.num_rows))
    for row in rows:
        assert batch.cache.all_lengths[row.place] == row.num_committed
        budget = batch.cache.budgets[row.place]
        assert budget.text >= row.num_committed and budget.queries >= row.num_queries
    assert batch.cache.num_tokens + batch.prefix_cache.num_tokens <= batch.max_cached_tokens
    if not rows:
        assert batch.cache.layers == []


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
def requests(draw):
    settings = {**draw(decodings), **draw(samplings), "max_new_tokens": draw(st.integers(1, 40))}
    if draw(st.booleans()):
        settings["eos_token_id"] = draw(st.sampled_from([EOS, [EOS, 30, 40, 50, 60]]))
    if draw(st.integers(0, 3)) == 0:
        settings["logits_processor"] = LogitsProcessorList([Favour(draw(st.integers(3, 149)))])
    return draw(prompts), draw(st.integers(0, 99)), settings


@given(st.lists(requests(), min_size=1, max_size=7), st.data())
@property_settings(60, deadline=None)
def test_every_row_writes_what_it_writes_alone(asked, data):
    calls = [call_of(tokens, seed, **settings) for tokens, seed, settings in asked]
    arrivals = [data.draw(st.integers(0, 12), "arrival") for _ in asked]
    cancelled = {
        i: data.draw(st.integers(0, 20), "end") for i in range(len(asked)) if data.draw(st.integers(0, 4)) == 0
    }
    most = max(sum(call.budget) for call in calls)
    room = data.draw(st.integers(most, 6 * most), "room")
    batch = RunningBatch(MODEL, room, data.draw(st.sampled_from([1, 7, 64]), "chunk"), data.draw(st.booleans()))
    got, errors = run(batch, calls, arrivals, cancelled)
    assert not errors
    for i, (tokens, seed, settings) in enumerate(asked):
        expected = alone(tokens, seed, **settings)
        if i in cancelled:
            assert got.get(i, []) == expected[: len(got.get(i, []))]
        else:
            assert got[i] == expected


def test_rows_of_equal_settings_share_a_group_and_all_rows_a_forward(monkeypatch):
    batch, widths = RunningBatch(MODEL, 10_000, 64), []
    forward = MODEL.model.forward

    def watched(**given):
        widths.append(len(given["input_ids"]))
        return forward(**given)

    monkeypatch.setattr(MODEL.model, "forward", watched)
    more = {"decoding": "verified", "eos_token_id": None, "max_new_tokens": 30}
    for name in range(3):
        batch.add(name, call_of(PROMPTS[name][:9], **{**more, "max_new_tokens": 30 + name}))
    batch.add(3, call_of(PROMPTS[3][:9], **more, do_sample=True))
    for _ in range(2):
        batch.step()
    assert [len(group.rows) for group in batch.groups] == [3, 1] and widths[-1] == 4


def test_a_long_prompt_is_read_between_the_steps_of_others():
    batch = RunningBatch(MODEL, 10_000, 16)
    batch.add("short", call_of(TEXT[:4], decoding="autoregressive", eos_token_id=None, max_new_tokens=60))
    batch.step()
    batch.add("long", call_of((TEXT * 9)[:200], decoding="autoregressive", eos_token_id=None, max_new_tokens=5))
    for num_read in range(1, 13):
        assert [each.name for each in batch.step()] == ["short"], num_read
    assert {each.name for each in batch.step()} == {"short", "long"}


def test_rows_wait_for_a_chunk_of_each_waiting_prompt():
    more = {"decoding": "autoregressive", "eos_token_id": None}
    for num_waiting, most in ((2, 2), (MOST_PREFILLS + 5, MOST_PREFILLS)):
        batch = RunningBatch(MODEL, 100_000, 16)
        batch.add("short", call_of(TEXT[:4], **more, max_new_tokens=200))
        batch.step()
        for name in range(num_waiting):
            batch.add(name, call_of((TEXT * 9)[name : name + 150], **more, max_new_tokens=5))
        waited = [0]
        while len(batch.prefills) == num_waiting:
            has_moved = "short" in [each.name for each in batch.step()]
            waited += [0] if has_moved else [waited.pop() + 1]
        assert max(waited) == most - 1


def test_a_waiting_prompt_is_looked_up_once(monkeypatch):
    batch, looked_up = RunningBatch(MODEL, 100_000, 16), []
    known = RunningBatch.cached_prefix
    monkeypatch.setattr(
        RunningBatch,
        "cached_prefix",
        lambda self, tokens, **more: looked_up.append(len(tokens)) or known(self, tokens),
    )
    for length in (30, 4, 31, 5, 32, 6, 33, 7, 8):
        batch.add(length, call_of((TEXT * 9)[:length], decoding="verified"))
    (first,) = batch.next_prefills()
    assert first.name == 30 and sorted(looked_up) == sorted(set(looked_up))
    looked_up.clear()
    assert [each.name for each in batch.next_prefills()] == [4, 5] and 8 not in looked_up


def test_a_query_costs_what_it_adds_to_a_forward_over_all_rows(monkeypatch):
    more = {"decoding": "verified", "eos_token_id": None, "max_new_tokens": 60, "window_size": 8}
    batch, widths, asked = RunningBatch(MODEL, 10_000, 64), {}, []
    cost_of = verified.relative_cost
    monkeypatch.setattr(verified, "relative_cost", lambda *given: (asked.append(given), cost_of(*given))[1])
    for name, query_cost in enumerate((0, 0, 0.04, 0.04, 9)):
        batch.add(name, call_of(TEXT[: 5 + name], **more, query_cost=query_cost))
    while batch.num_rows:
        num_rows, has_joined = len(batch.rows), not batch.prefills
        asked.clear()
        batch.step()
        if has_joined:
            assert {rows for _, rows in asked} == {num_rows}
        for group in batch.groups:
            widths.setdefault(group.policy.query_cost, []).extend(row.num_queries for row in group.rows)
    assert max(widths[0]) > max(widths[0.04]) >= max(widths[9]) == 1


def test_a_row_whose_reader_fails_ends_alone():
    calls = [
        call_of(TEXT[:5], decoding="verified", max_new_tokens=20, eos_token_id=None),
        call_of(
            TEXT[:8],
            decoding="verified",
            max_new_tokens=20,
            eos_token_id=None,
            logits_processor=LogitsProcessorList([Favour(fails_at=12)]),
        ),
        call_of(TEXT[:6], decoding="verified", max_new_tokens=20, eos_token_id=None, suppress_tokens=list(range(160))),
    ]
    got, errors = run(RunningBatch(MODEL, 10_000, 64), calls)
    assert got[0] == alone(TEXT[:5], decoding="verified", max_new_tokens=20, eos_token_id=None)
    assert "a processor of the user" in str(errors[1]) and "No token has a finite score" in str(errors[2])


def test_what_is_known_of_a_beginning_is_not_read_again():
    batch, more = RunningBatch(MODEL, 2_000, 64), {"decoding": "verified", "max_new_tokens": 10, "eos_token_id": None}
    first = TEXT[:30]
    (got, _) = run(batch, [call_of(first, **more)])
    assert batch.counts.found_tokens == 0 and batch.counts.prompt_tokens == 30
    turn = first + got[0] + [5, 6, 7]
    again, _ = run(batch, [call_of(turn, **more)])
    assert again[0] == alone(turn, **more)
    assert 30 < batch.counts.found_tokens <= 40 and batch.counts.prompt_tokens == 30 + 43
    batch.add(0, call_of(first + [9], **more))  # a row that is under way is found as well
    batch.step()
    before = batch.counts.found_tokens
    batch.prefix_cache.shrink(0)
    batch.add(1, call_of(first + [9, 10], **more))
    batch.step()
    assert batch.counts.found_tokens == before + 31


def test_a_text_that_ends_at_once_is_kept_beside_others():
    batch, more = RunningBatch(MODEL, 2_000, 64), {"decoding": "verified", "eos_token_id": None}
    batch.add("long", call_of(TEXT[5:9], **more, max_new_tokens=60))
    batch.step()
    batch.add("short", call_of(TEXT[:30], **more, max_new_tokens=1))
    batch.step()
    (text,) = batch.prefix_cache.texts.values()
    assert text.tokens == TEXT[:30] and text.layers[0][0].shape[:3] == (1, 2, 30)
    got, _ = run(batch, [call_of(TEXT[:30] + [9], **more, max_new_tokens=9)])
    assert got[0] == alone(TEXT[:30] + [9], **more, max_new_tokens=9) and batch.counts.found_tokens == 30


def test_a_text_is_kept_where_a_longer_row_has_left_its_memory():
    batch, more = RunningBatch(MODEL, 1_000, 64), {"decoding": "autoregressive", "eos_token_id": None}
    batch.add("long", call_of((TEXT * 9)[:200], **more, max_new_tokens=250))
    batch.add("stays", call_of(TEXT[1:9], **more, max_new_tokens=200))
    for _ in range(9):
        batch.step()
    batch.drop("long")
    assert batch.cache.num_tokens > 900
    short = (TEXT * 9)[:90]
    batch.add("short", call_of(short, **more, max_new_tokens=10))
    while "short" in [row.name for row in batch.placed_rows] or batch.prefills:
        batch.step()
    assert [text.tokens[:90] for text in batch.prefix_cache.texts.values()] == [short]
    check(batch)
    got, _ = run(batch, [])
    assert 0 < len(got["stays"]) and alone(TEXT[1:9], **more, max_new_tokens=200)[-len(got["stays"]) :] == got["stays"]


class Counting(LogitsProcessor):
    """A processor that must be asked about each length once."""

    def __init__(self):
        self.lengths = []

    def __call__(self, input_ids, scores):
        self.lengths.append(input_ids.shape[1])
        assert len(set(self.lengths)) == len(self.lengths)
        return scores


def test_a_reader_is_not_asked_again_where_a_forward_has_failed(monkeypatch):
    more = {"decoding": "verified", "eos_token_id": None, "max_new_tokens": 12}
    calls = [call_of(TEXT[:6], **more), call_of(TEXT[:5], **more, logits_processor=LogitsProcessorList([Counting()]))]
    merged_rows = []

    def merged_once(groups):
        merged_rows.append(len(groups))
        if len(merged_rows) == 2:  # behind the first step of both
            raise MemoryError("no room")
        return merged(groups)

    monkeypatch.setattr("wedlm.batching.running_batch.merged", merged_once)
    got, errors = run(RunningBatch(MODEL, 10_000, 64), calls)
    assert got[0] == alone(TEXT[:6], **more) and str(errors[1]) == "no room" and 0 not in errors


REFUSAL = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."


def refusing(function, refused):
    """A function that finds no memory in its calls of these numbers, where `refused` is a set, or where it says so."""
    calls = []

    def wrapped(*arguments, **named):
        calls.append(None)
        if len(calls) in refused if isinstance(refused, set) else refused(*arguments):
            raise RuntimeError(REFUSAL)
        return function(*arguments, **named)

    return wrapped


def test_where_a_forward_finds_no_memory_the_longest_rows_fail(monkeypatch):
    more = {"decoding": "verified", "eos_token_id": None}
    calls = [call_of(TEXT[:5], **more, max_new_tokens=number) for number in (12, 30, 20, 9)]
    many = refusing(running_batch.forward_queries, lambda model, queries, *_: len(queries.input_ids) > 2)
    batch = RunningBatch(MODEL, 10_000, 5)
    monkeypatch.setattr(running_batch, "forward_queries", many)
    got, errors = run(batch, calls)
    assert {str(error) for error in errors.values()} == {REFUSAL} and set(errors) == {1, 2}
    assert got[0] == alone(TEXT[:5], **more, max_new_tokens=12) and got[3] == alone(TEXT[:5], **more, max_new_tokens=9)


@given(st.lists(requests(), min_size=2, max_size=5), st.sampled_from(["blank", "forward", "keep"]), st.data())
@property_settings(60, deadline=None)
def test_where_memory_is_refused_no_text_is_another_one(asked, where, data):
    refused = data.draw(st.sets(st.integers(1, 12), min_size=1), "refused")
    calls = [call_of(tokens, seed, **settings) for tokens, seed, settings in asked]
    arrivals = [data.draw(st.integers(0, 12), "arrival") for _ in asked]
    batch = RunningBatch(MODEL, 4 * max(sum(call.budget) for call in calls), 64)
    with pytest.MonkeyPatch.context() as patch:
        if where == "keep":
            patch.setattr(SharedCache, "entries_of", refusing(SharedCache.entries_of, lambda *_: True))
            patch.setattr(batch, "cached_prefix", lambda *_, **__: (0, []))
        elif where == "blank":
            patch.setattr(shared_cache, "blank", refusing(shared_cache.blank, refused))
        else:
            patch.setattr(running_batch, "forward_queries", refusing(running_batch.forward_queries, refused))
        got, errors = run(batch, calls, arrivals)
    assert {str(error) for error in errors.values()} <= {REFUSAL}
    assert not (errors and where == "keep")  # Keeping a text fails nobody.
    for i, (tokens, seed, settings) in enumerate(asked):
        expected = alone(tokens, seed, **settings)
        assert got.get(i, []) == (expected[: len(got.get(i, []))] if i in errors else expected)


@given(st.lists(requests(), min_size=1, max_size=4), st.sampled_from(["fill", "end_at", "advance"]), st.integers(1, 6))
@property_settings(30, deadline=None)
def test_cached_texts_make_room_before_a_row_fails(asked, where, when):
    batch = RunningBatch(MODEL, 10_000, 64)
    run(batch, [call_of(TEXT[:9], eos_token_id=None, max_new_tokens=4)])
    calls = [call_of(tokens, seed, **settings) for tokens, seed, settings in asked]
    num_calls, texts = [], batch.prefix_cache.texts

    def refused(function):
        def wrapped(*arguments):
            num_calls.append(len(texts))
            if len(num_calls) >= when and texts:
                raise RuntimeError(REFUSAL)
            return function(*arguments)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for kind in (StreamingWindow, VerifiedWindow):
            patch.setattr(kind, where, refused(getattr(kind, where)))
        got, errors = run(batch, calls)
    assert set(errors) <= {i for i, call in enumerate(calls) if call.call.has_callbacks}
    for i, (tokens, seed, settings) in enumerate(asked):
        assert i in errors or got.get(i, []) == alone(tokens, seed, **settings)


def test_noise_and_scores_count_before_a_row_is_taken_in():
    drawn = {"decoding": "streaming", "window_size": 8, "max_new_tokens": 40, "do_sample": True}
    wide, narrow = call_of(TEXT[:5], **drawn), call_of(TEXT[:5], **drawn | {"window_size": 2, "do_sample": False})
    of_wide = wide.noise_bytes + scores_bytes(MODEL, 16)
    assert wide.noise_bytes == 17 * 160 * 4 and narrow.noise_bytes == 0
    batch = RunningBatch(MODEL, 10_000, 64, max_work_bytes=2 * of_wide)
    for name in range(2):
        assert batch.can_admit(wide)
        batch.add(name, wide)
        assert batch.work_bytes_with() == (name + 1) * of_wide
        batch.step()
        assert batch.work_bytes_with() == (name + 1) * of_wide
    assert not batch.can_admit(wide) and not batch.can_admit(narrow)
    batch.drop(0)
    assert batch.can_admit(narrow)


@pytest.mark.parametrize("settings", [{"decoding": "streaming"}, {"decoding": "verified", "do_sample": True}])
def test_with_fixed_shapes_equal_requests_get_one_text_in_bfloat16(settings, monkeypatch):
    """Whoever else is there, and whenever they come: forwards over several rows round otherwise."""
    model = load(CHECKPOINTS / "q3").bfloat16()
    settings = {**settings, "eos_token_id": None, "pad_token_id": PAD, "max_new_tokens": 24}
    asked = [each for i in range(4) for each in ((TEXT[:20], 3), ((TEXT * 3)[i : i + 4 + 17 * i], i))]
    calls = [prepare(model, tokens, None, settings, seed, fixed_shapes=True) for tokens, seed in asked]
    num_rows, forward = set(), model.model.forward

    def watched(**given):
        num_rows.add(len(given["input_ids"]))
        return forward(**given)

    monkeypatch.setattr(model.model, "forward", watched)
    got, errors = run(RunningBatch(model, 20_000, 64, fixed_shapes=True), calls, [0, 1, 1, 2, 5, 5, 9, 14])
    assert not errors and num_rows == {1} and len({tuple(got[i]) for i in range(0, 8, 2)}) == 1


def test_a_row_that_cannot_join_leaves_the_others_as_they_are(monkeypatch):
    batch, more = RunningBatch(MODEL, 10_000, 64), {"decoding": "verified", "eos_token_id": None, "max_new_tokens": 30}
    batch.add("a", call_of(TEXT[:5], **more))
    batch.step()
    with monkeypatch.context() as patch:
        patch.setattr("wedlm.batching.settings_group.joined_windows", lambda windows: 1 / 0)
        batch.add("b", call_of(TEXT[:9], **more))
        failed = [each for each in batch.step() if each.error is not None]
    assert [each.name for each in failed] == ["b"]
    written = [token for group in batch.groups for row in group.rows for token in row.tokens[5:]]
    got, errors = run(batch, [])
    assert not errors and written + got["a"] == alone(TEXT[:5], **more)


def test_the_memory_is_bounded_and_goes_with_the_last_row():
    batch, more = RunningBatch(MODEL, 400, 64), {"decoding": "streaming", "max_new_tokens": 20, "eos_token_id": None}
    calls = [call_of((TEXT * 3)[i : i + 5 + 20 * i], seed=i, **more) for i in range(6)]
    got, errors = run(batch, calls)  # `check` looks at the bound behind every step
    assert not errors and len(got) == 6
    assert batch.cache.num_tokens == 0 < batch.prefix_cache.num_tokens <= 400

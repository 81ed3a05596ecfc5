"""Verified decoding: autoregressive text, and what it takes to get it."""

import math
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from callback_cases import CALLBACKS, callbacks_of
from decoded import policy_with, steps_of_rows
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, left_padded, load, logits_of
from hypothesis import given
from hypothesis import strategies as st
from make_trained import question
from reference_decoder import MOST_MATCHED, decode_verified
from tiers import property_settings
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation import BaseStreamer, RepetitionPenaltyLogitsProcessor

from wedlm.generation.row_cache import seen_entries
from wedlm.generation.transformers_internals import CACHE
from wedlm.generation.verified import VerifiedWindow

SPECIAL = {"eos_token_id": EOS, "pad_token_id": PAD}


class FavoursRepeats(LogitsProcessor):
    """A processor that reads the text."""

    def __call__(self, input_ids, scores):
        return scores + torch.nn.functional.one_hot(input_ids[:, -1], scores.shape[1])


def golden(name):
    return load(CHECKPOINTS / name).double()  # where no rounding decides


MODELS = {name: golden(name) for name in ("q25", "q3", "trained")}
QUESTIONS = [question(10**6 + number) for number in range(40)]  # for the trained one, which has not seen them
TRAINED_CALLBACKS = {  # the others' are made for a larger vocabulary
    "penalty": {"repetition_penalty": 1.3},
    "n-grams": {"no_repeat_ngram_size": 3},
    "min new": {"min_new_tokens": 9},
    "bad words": {"bad_words_ids": [[7], [5, 6], [9, 4, 3]]},
    "own": {"logits_processor": LogitsProcessorList([FavoursRepeats()])},
}


LOOK_UPS = [
    {},
    {"prompt_lookup_num_tokens": 0},
    {"prompt_lookup_num_tokens": 2},
    {"prompt_lookup_num_tokens": 20},
    {"prompt_lookup_num_tokens": 9, "max_matching_ngram_size": 2},
]


@st.composite
def calls(draw):
    """A model, ragged prompts, and arguments of generate()."""
    name = draw(st.sampled_from(sorted(MODELS)), "model")
    if name == "trained":
        prompts = draw(st.lists(st.sampled_from(QUESTIONS), min_size=1, max_size=4), "prompts")
    else:
        prompts = draw(st.lists(st.lists(st.integers(3, 149), min_size=1, max_size=12), min_size=1, max_size=4))
    width = max(map(len, prompts)) + draw(st.sampled_from([0, 0, 3]), "padding")
    ids = [[PAD] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    ends = draw(st.lists(st.integers(3, 12 if name == "trained" else 149), max_size=2, unique=True), "end tokens")
    return MODELS[name], prompts, {
        "input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "pad_token_id": PAD,
        "eos_token_id": [EOS, *ends],
        "max_new_tokens": draw(st.one_of(st.integers(1, 3), st.integers(4, 40)), "max_new_tokens"),
        "window_size": draw(st.one_of(st.integers(1, 4), st.just(16)), "window_size"),
        "query_cost": draw(st.sampled_from([None, 0, 0.02, 0.1, 0.5, 10]), "query_cost"),
        **draw(st.sampled_from(LOOK_UPS), "look-up"),
    }  # fmt: skip


@given(calls(), st.data())
@property_settings(60, deadline=None, derandomize=True)
def test_any_batch_equals_the_slow_reference_row_by_row(call, data):
    """The text, and in the planned steps every draft, and which of them are accepted."""
    model, prompts, arguments = call
    arguments |= data.draw(st.sampled_from([{}, {"cache_implementation": "static"}, {"use_cache": False}]), "cache")
    arguments |= {"acceptance_ratio": data.draw(st.sampled_from([1.0, 0.5, 0.1, 0.01]), "ratio")}
    penalty = data.draw(st.sampled_from([None, 1.05]), "penalty")
    with steps_of_rows(len(prompts)) as steps:
        got = model.generate(
            **arguments, repetition_penalty=penalty, decoding="verified", return_dict_in_generate=True
        )  # fmt: skip
    processors = None if penalty is None else LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty)])
    width = arguments["input_ids"].shape[1]
    for row, prompt in enumerate(prompts):
        expected = decode_verified(
            logits_of(model), prompt, arguments["max_new_tokens"], model.config.mask_token_id,
            arguments["eos_token_id"], steps[row], arguments["window_size"],
            num_looked_up=arguments.get("prompt_lookup_num_tokens"),
            most_matched=arguments.get("max_matching_ngram_size", MOST_MATCHED),
            acceptance_ratio=arguments["acceptance_ratio"], processors=processors,
            padding=[PAD] * (width - len(prompt)),
        )  # fmt: skip
        num_tokens = len(expected.ids)
        assert got.sequences[row, width : width + num_tokens].tolist() == expected.ids
        assert (got.sequences[row, width + num_tokens :] == arguments["pad_token_id"]).all()
        assert got.forwards[row] == expected.forwards
        assert got.prefix_cacheability[row] == pytest.approx(num_tokens / max(num_tokens, expected.window_queries))
        assert got.verified_drafts[row].tolist() == expected.verified
        assert got.accepted_drafts[row].tolist() == expected.accepted


@given(calls(), st.data())
@property_settings(90, deadline=None, derandomize=True)
def test_the_text_is_that_of_autoregressive_decoding(call, data):
    """With processors, criteria and stop strings, in ragged batches, in no more forwards than tokens."""
    model, prompts, arguments = call
    callbacks = TRAINED_CALLBACKS if model is MODELS["trained"] else CALLBACKS
    for name in data.draw(st.lists(st.sampled_from(sorted(callbacks)), max_size=2, unique=True), "callbacks"):
        arguments |= callbacks[name]
    own = {name: arguments.pop(name, None) for name in ("window_size", "query_cost", *LOOK_UPS[-1])}
    expected = model.generate(**arguments, decoding="autoregressive", return_dict_in_generate=True)
    got = model.generate(**arguments, decoding="verified", **own, return_dict_in_generate=True)
    assert torch.equal(got.sequences, expected.sequences)
    tokens = (got.forwards * got.tokens_per_forward).round().long()
    assert (got.forwards <= tokens).all()
    assert (tokens >= expected.forwards).all(), "which does not count PAD where the model wrote it last"
    assert (got.forwards + got.accepted_drafts.sum(-1) >= tokens).all(), "every other token was a draft"
    if len(prompts) == 1:  # or rows in step may have to accept a draft and go no further
        assert got.forwards + got.accepted_drafts.sum(-1) <= tokens + 1, "as was at most the last one"


@torch.no_grad()
def gaps_to_the_best(model, arguments: dict, output) -> list[float]:
    """How far below the best score that of each written token is, by one plain forward over the whole text."""
    processors, _ = callbacks_of(model, **arguments, decoding="verified")
    ids, width = output.sequences, arguments["input_ids"].shape[1]
    num_tokens = (output.forwards * output.tokens_per_forward).round().long()
    mask = torch.nn.functional.pad(arguments["attention_mask"], (0, ids.shape[1] - width), value=1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits, gaps = model(ids, attention_mask=mask, position_ids=positions).logits.float(), []
    for column in range(width, ids.shape[1]):
        scores = processors(ids[:, :column], logits[:, column - 1].clone())
        gap = scores.max(-1).values - scores.gather(1, ids[:, column : column + 1])[:, 0]
        gaps += gap[num_tokens > column - width].tolist()
    return gaps


def test_a_lower_ratio_accepts_more_drafts():
    """And at every ratio some are rejected, or the tests here would be about nothing."""
    arguments = {**left_padded(QUESTIONS), **SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
    arguments |= {"query_cost": 0, "window_size": 16}
    others, speeds = [], []
    for ratio in (1.0, 0.5, 0.1):
        output = MODELS["trained"].generate(**arguments, decoding="verified", acceptance_ratio=ratio)
        others.append(sum(gap > 1e-5 for gap in gaps_to_the_best(MODELS["trained"], arguments, output)))
        speeds.append((output.accepted_drafts.sum() / output.verified_drafts.sum()).item())
    assert others[0] == 0 and all(before + 5 < after for before, after in pairwise(others)), others
    assert all(before + 0.02 < after for before, after in pairwise(speeds)) and 0 < speeds[0] and speeds[-1] < 1


@pytest.mark.parametrize("more", [{}, {"use_cache": False}, {"prefill_chunk_size": 3}], ids=str)
def test_drafts_are_looked_up_behind_a_gap_in_the_mask(more):
    """Tokens that the mask leaves out are no text, and no drafts."""
    model, (first, second) = MODELS["trained"], QUESTIONS[:2]
    ids = torch.tensor([[*first, PAD, PAD, *first, *second]])
    arguments = {"attention_mask": (ids != PAD).long(), **SPECIAL, "max_new_tokens": 30}
    expected = model.generate(ids, **arguments, decoding="autoregressive")
    looked_up = {"decoding": "verified", "prompt_lookup_num_tokens": 15, "window_size": 16}
    assert torch.equal(model.generate(ids, **arguments, **looked_up, **more), expected)


def test_a_default_dtype_changes_nothing():
    arguments = {**left_padded(QUESTIONS[:3]), **SPECIAL, "max_new_tokens": 12, "decoding": "verified"}
    arguments |= {"return_dict_in_generate": True}
    expected = MODELS["trained"].generate(**arguments)
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = MODELS["trained"].generate(**arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got.sequences, expected.sequences) and torch.equal(got.forwards, expected.forwards)


LOOKS_UP = {"decoding": "verified", "prompt_lookup_num_tokens": 7}
LOOKS_NOTHING_UP = {"decoding": "verified", "prompt_lookup_num_tokens": 0}


@pytest.mark.parametrize("has_whole_text", [True, False], ids=["the whole text", "the new ids alone"])
def test_a_second_turn_looks_up_drafts(has_whole_text):
    model, arguments = MODELS["trained"], {**SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
    is_used = False
    for ids, more in pairwise(QUESTIONS[:4]):
        first = model.generate(**left_padded([ids]), **arguments, **LOOKS_UP)
        text = torch.cat([first.sequences, torch.tensor([more + more])], dim=-1)
        mask = torch.ones_like(text)
        expected = model.generate(text, attention_mask=mask, **arguments, decoding="autoregressive").sequences[0]
        new = text if has_whole_text else text[:, first[CACHE].get_seq_length() :]
        second, plain = (
            model.generate(new, attention_mask=mask, **arguments, **settings, **{CACHE: deepcopy(first[CACHE])})
            for settings in (LOOKS_UP, LOOKS_NOTHING_UP)
        )
        assert second.sequences[0, new.shape[1] :].tolist() == expected[text.shape[1] :].tolist()
        is_used |= not torch.equal(second.verified_drafts, plain.verified_drafts)
    assert is_used


# --- What drafts may change, and what they may not ---


def test_drafts_that_are_always_wrong_cost_a_forward_for_each_token():
    model, draft = MODELS["q3"], 7
    arguments = {**left_padded(PROMPTS), **SPECIAL, "max_new_tokens": 24, "suppress_tokens": [draft]}
    expected = model.generate(**arguments, decoding="autoregressive", return_dict_in_generate=True)

    def predict_the_draft(module, inputs, logits):
        logits[:, 1:].fill_(-math.inf)[..., draft] = 0  # the one verifier is first, as no draft is ever accepted

    # A processor that reads text is called for verified slots only, so that drafts are not kept from being suppressed.
    arguments |= {"repetition_penalty": 1.0001, "prompt_lookup_num_tokens": 0, "query_cost": 0}
    handle = model.lm_head.register_forward_hook(predict_the_draft)
    try:
        got = model.generate(**arguments, decoding="verified", return_dict_in_generate=True)
    finally:
        handle.remove()
    assert torch.equal(got.sequences, expected.sequences)
    assert torch.equal(got.forwards, expected.forwards) and got.verified_drafts[:, 0].sum() > 24
    assert got.accepted_drafts.sum() == 0


def test_queries_stand_where_they_should():
    """A known token, drafts with chances 0.75 and 0.5, and 13 MASKs in groups of 3, 3 and 7."""
    policy = policy_with(8)
    window = VerifiedWindow.opened(torch.tensor([10]), 20, policy)
    window.put_tokens(torch.tensor([[0]]), torch.tensor([[True]]), torch.tensor([[50]]))
    window.num_leading = torch.tensor([1])
    window.drafts[0, :2] = torch.tensor([60, 61])
    window.num_drafts, window.groups = torch.tensor([2]), torch.tensor([[3, 6, 9, 16, 16, 16, 16, 16, 16]])
    assert window.num_queries.tolist() == [16]
    queries = window.queries(16, policy)
    assert queries.input_ids.tolist() == [[50, 60, 61] + [MASK] * 13]
    assert queries.position_ids.tolist() == [[10, 11, 12, 11, 12, 13, 12, 13, 14, 13, 14, 15, 16, 17, 18, 19]]
    assert queries.logits_indices.tolist() == [[*range(16)]] and queries.is_predicted.all()
    assert queries.predicted_slots.tolist() == [[1, 2, 3, 1, 2, 3, 2, 3, 4, 3, 4, 5, 6, 7, 8, 9]]
    is_seen = seen_entries(torch.arange(16)[None], queries.visible_prefix, 16)
    who = ["".join(".x"[sees] for sees in row) for row in is_seen[0, 0].tolist()]
    assert who == [
        "x...............",
        "xx..............",
        "xxx.............",
        "x..x............",
        "x..xx...........",
        "x..xxx..........",
        "xx....x.........",
        "xx....xx........",
        "xx....xxx.......",
        "xxx......x......",
        "xxx......xx.....",
        "xxx......xxx....",
        "xxx......xxxx...",
        "xxx......xxxxx..",
        "xxx......xxxxxx.",
        "xxx......xxxxxxx",
    ]


def test_no_forward_has_more_queries_than_it_needs(monkeypatch):
    """As many as the pending tokens and the groups of the row that has most."""
    widths, advance = [], VerifiedWindow.advance

    def watched(window, *arguments):
        num_kept = advance(window, *arguments)
        sizes = window.groups.diff(dim=-1)
        assert (sizes <= window.window_size).all() and (sizes >= 0).all()
        assert window.groups[:, 0].equal(window.num_leading + window.num_drafts)
        widths.append(window.groups.max().item())
        return num_kept

    seen, model = [], MODELS["trained"].model
    forward = model.forward

    def noted(**given):  # (no hook, which would keep rows in the batch)
        seen.append(given["input_ids"].shape[1])
        return forward(**given)

    monkeypatch.setattr(VerifiedWindow, "advance", watched)
    monkeypatch.setattr(model, "forward", noted)
    arguments = {"max_new_tokens": 40, "decoding": "verified", "window_size": 16, "query_cost": 0}
    MODELS["trained"].generate(**left_padded(QUESTIONS[:5]), **SPECIAL, **arguments)
    assert seen[1:] == widths[:-1] and max(widths) == 32


def test_a_prompt_goes_through_without_a_mask():
    """Or a long one would cost a mask over all pairs of its tokens."""
    masks = []

    def record(module, args, arguments):
        masks.append(arguments["attention_mask"])

    handle = MODELS["q3"].register_forward_pre_hook(record, with_kwargs=True)
    try:
        MODELS["q3"].generate(**left_padded(PROMPTS), **SPECIAL, max_new_tokens=9, decoding="verified")
    finally:
        handle.remove()
    assert masks[0] is None and len(masks) > 2 and all(mask is not None for mask in masks[1:])


# --- Those who read along ---


class Recorder(BaseStreamer):
    def __init__(self):
        self.calls = []

    def put(self, value):
        self.calls.append(("put", value.tolist()))

    def put_draft(self, value):
        self.calls.append(("draft", value.tolist()))

    def end(self):
        self.calls.append(("end", None))


@pytest.mark.parametrize("processors, ratio", [([], 0.1), ([RepetitionPenaltyLogitsProcessor(1.02)], 1.0)])
def test_a_streamer_gets_what_becomes_known_and_the_drafts_behind_it(processors, ratio):
    model, ends, longest = MODELS["trained"], [EOS], 0
    for ids in QUESTIONS[:6]:
        processors = LogitsProcessorList(processors)
        recorder = Recorder()
        with steps_of_rows(1) as (steps,):
            model.generate(
                torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long(), **SPECIAL,
                max_new_tokens=40, decoding="verified", streamer=recorder, logits_processor=processors,
                acceptance_ratio=ratio, window_size=16,
            )  # fmt: skip
        expected = decode_verified(
            logits_of(model), ids, 40, model.config.mask_token_id, ends, steps, 16, processors, acceptance_ratio=ratio
        )
        known = [0, *(step["known"] for step in expected.steps), len(expected.ids)]
        calls = [("put", [ids])]
        for (begin, end), step in zip(pairwise(known), [*expected.steps, None], strict=True):
            calls += [("put", expected.ids[begin:end])] + ([("draft", step["drafts"])] if step else [])
        assert recorder.calls == [*calls, ("end", None)]
        longest = max(longest, *(len(value) for kind, value in calls[1:] if kind == "put"))
    assert longest > 3


class EndsWith(StoppingCriteria):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


def test_drafts_are_counted_alike_where_rows_go_in_step():
    """Text that is final may be read by a criterion some forwards later."""
    arguments = {**left_padded(QUESTIONS), **SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
    arguments |= {"query_cost": 0}  # or what a query costs would change as rows leave
    never = {"stopping_criteria": StoppingCriteriaList([EndsWith(MASK)])}
    expected, got = (MODELS["trained"].generate(**arguments, **more, decoding="verified") for more in ({}, never))
    assert torch.equal(got.sequences, expected.sequences) and (got.forwards > expected.forwards).any()
    assert torch.equal(got.verified_drafts, expected.verified_drafts)
    assert torch.equal(got.accepted_drafts, expected.accepted_drafts)


def test_scores_are_the_autoregressive_ones():
    model = MODELS["trained"]
    inputs = left_padded(QUESTIONS[:3])
    arguments = {
        **inputs, **SPECIAL, "max_new_tokens": 12, "output_scores": True, "output_logits": True,
        "return_dict_in_generate": True, "eos_token_id": None,
    }  # fmt: skip
    for more in ({}, {"repetition_penalty": 1.1}):
        expected = model.generate(**arguments, **more, decoding="autoregressive")
        got = model.generate(**arguments, **more, decoding="verified")
        assert torch.equal(got.sequences, expected.sequences) and got.accepted_drafts.sum() > 2
        for name in ("scores", "logits"):
            for column, other in zip(got[name], expected[name], strict=True):
                torch.testing.assert_close(column, other.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.1}], ids=str)
def test_scores_of_accepted_drafts_are_those_that_verified_them(more):
    """So a written token may have less than the best score of its column."""
    arguments = {
        **left_padded(QUESTIONS), **SPECIAL, **more, "max_new_tokens": 12, "output_scores": True,
        "return_dict_in_generate": True, "eos_token_id": None, "query_cost": 0,
    }  # fmt: skip
    got = MODELS["trained"].generate(**arguments, decoding="verified", acceptance_ratio=0.1)
    scores = torch.stack(got.scores)  # [tokens, batch, vocabulary]
    gaps = (scores.max(-1).values - scores.gather(-1, got.sequences[:, -12:].T[..., None])[..., 0]).flatten()
    assert gaps.max() <= -math.log(0.1) + 1e-5 and (gaps > 0.1).sum() > 5
    expected = gaps_to_the_best(MODELS["trained"], arguments, got)
    torch.testing.assert_close(gaps, torch.tensor(expected), rtol=1e-4, atol=1e-4)


# --- Sampling ---


NUM_TOKENS, NUM_SAMPLES = 4, 20_000

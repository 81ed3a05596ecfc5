"""Verified decoding: autoregressive text, and what it takes to get it."""

import doctest
import math
from copy import deepcopy
from functools import partial
from itertools import pairwise

import pytest
import torch
from callback_cases import CALLBACKS, callbacks_of
from decoded import SPECIAL, DraftRecorder, begun, settings_with, steps_of_rows
from draft_models import drafted
from helpers import CHECKPOINTS, EOS, MASK, PAD, left_padded, load, logits_of
from hypothesis import given
from hypothesis import strategies as st
from make_trained import question
from reference_decoder import MOST_MATCHED, decode_verified
from tiers import property_settings
from torch.nn.functional import one_hot, pad
from transformers import LogitsProcessorList
from transformers.generation import RepetitionPenaltyLogitsProcessor

from wedlm.generation import branches, verified
from wedlm.generation.branches import BRANCHES
from wedlm.generation.call import strategy_of
from wedlm.generation.row_cache import seen_entries
from wedlm.generation.sequences import State
from wedlm.generation.transformers_internals import CACHE

# (In float64 no rounding decides.)
MODELS = {name: load(CHECKPOINTS / name).double() for name in ("q25", "q3", "trained")}
MODELS["drafted"] = drafted().double()
PENALTY = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.05)])  # which counts padding, too
QUESTIONS = [question(10**6 + number) for number in range(40)]  # for the trained one, which has not seen them
TRAINED_CALLBACKS = {  # the others' are made for a larger vocabulary
    "penalty": {"repetition_penalty": 1.3},
    "n-grams": {"no_repeat_ngram_size": 3},
    "min new": {"min_new_tokens": 9},
    "bad words": {"bad_words_ids": [[7], [5, 6], [9, 4, 3]]},
    "own": {"logits_processor": [lambda ids, scores: scores + one_hot(ids[:, -1], scores.shape[1])]},
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
    padding = draw(st.sampled_from([0, 0, 3]), "padding")
    ends = draw(st.lists(st.integers(3, 12 if name == "trained" else 149), max_size=2, unique=True), "end tokens")
    return MODELS[name], prompts, {
        **{name: pad(columns, (padding, 0)) for name, columns in left_padded(prompts).items()},
        "pad_token_id": PAD, "eos_token_id": [EOS, *ends],
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
    processors = data.draw(st.sampled_from([None, PENALTY]), "processors")
    with steps_of_rows(len(prompts)) as steps:
        got = model.generate(
            **arguments, logits_processor=processors, decoding="verified", return_dict_in_generate=True
        )  # fmt: skip
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
    mask = pad(arguments["attention_mask"], (0, ids.shape[1] - width), value=1)
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


# --- The queries of a forward ---


def test_queries_stand_where_they_should():
    """A known token, two drafts, and 7 MASKs in groups of 2, 2 and 3."""
    settings = settings_with(BRANCHES, 5)
    sequences, kept = begun(BRANCHES, settings, [10], 20)
    sequences.tokens[0, 0] = 50
    sequences = sequences._replace(num_final=torch.tensor([1]))
    kept.tokens[0, :2] = torch.tensor([60, 61])
    kept = kept._replace(num_drafts=torch.tensor([2]), bounds=torch.tensor([[3, 5, 7, 10, 10, 10]]))
    queries = branches.queries(State(sequences, kept), 10, settings)
    assert queries.input_ids.tolist() == [[50, 60, 61] + [MASK] * 7]
    assert queries.position_ids.tolist() == [[10, 11, 12, 11, 12, 12, 13, 13, 14, 15]]
    assert queries.predicted_slots.tolist() == [[1, 2, 3, 1, 2, 2, 3, 3, 4, 5]]
    is_seen = seen_entries(torch.arange(10)[None], queries.visible_prefix, 10)
    assert ["".join(".x"[sees] for sees in row) for row in is_seen[0, 0].tolist()] == [
        "x.........",
        "xx........",
        "xxx.......",
        "x..x......",
        "x..xx.....",
        "xx...x....",
        "xx...xx...",
        "xxx....x..",
        "xxx....xx.",
        "xxx....xxx",
    ]


def test_no_forward_has_more_queries_than_it_needs_and_that_over_the_prompt_has_no_mask(monkeypatch):
    """As many as the row that has most; a long prompt would have a mask over all pairs of its tokens."""
    masks, seen, widths = [], [], []
    model = MODELS["trained"]

    def watched(*arguments):
        state, num_kept = branches.commit(*arguments)
        widths.append(state.sequences.num_queries.max().item())
        return state, num_kept

    def noted(_, forward=model.model.forward, **given):  # (no hook, which would keep rows in the batch)
        masks.append(given["attention_mask"])
        seen.append(given["input_ids"].shape[1])
        return forward(**given)

    watching = lambda *given: strategy_of(*given)._replace(commit=watched)  # noqa: E731
    monkeypatch.setattr("wedlm.generation.call.strategy_of", watching)
    monkeypatch.setattr(model.model, "forward", partial(noted, None))
    arguments = {"max_new_tokens": 40, "decoding": "verified", "window_size": 16, "query_cost": 0}
    model.generate(**left_padded(QUESTIONS[:5]), **SPECIAL, **arguments)
    assert seen[1:] == widths[:-1] and max(widths) == 32
    assert [mask is None for mask in masks] == [True] + [False] * (len(masks) - 1)


# --- Those who read along ---


@pytest.mark.parametrize("processors, ratio", [([], 0.1), ([RepetitionPenaltyLogitsProcessor(1.02)], 1.0)])
def test_a_streamer_gets_what_becomes_known_and_the_drafts_behind_it(processors, ratio):
    model, ends, longest = MODELS["trained"], [EOS], 0
    for ids in QUESTIONS[:6]:
        processors = LogitsProcessorList(processors)
        recorder = DraftRecorder()
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


def test_drafts_are_counted_alike_where_rows_go_in_step():
    """Text that is final may be read by a criterion some forwards later."""
    arguments = {**left_padded(QUESTIONS), **SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
    arguments |= {"query_cost": 0}  # or what a query costs would change as rows leave
    never = {"stopping_criteria": [lambda ids, scores: ids[:, -1] == MASK]}
    expected, got = (MODELS["trained"].generate(**arguments, **more, decoding="verified") for more in ({}, never))
    assert torch.equal(got.sequences, expected.sequences) and (got.forwards > expected.forwards).any()
    assert torch.equal(got.verified_drafts, expected.verified_drafts)
    assert torch.equal(got.accepted_drafts, expected.accepted_drafts)


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.1}], ids=str)
@pytest.mark.parametrize("ratio", [1.0, 0.1])
def test_scores_are_those_that_verified_the_drafts(more, ratio):
    """So below a ratio of 1 a written token may have less than the best score of its column."""
    arguments = {
        **left_padded(QUESTIONS), **SPECIAL, **more, "max_new_tokens": 12, "output_scores": True,
        "return_dict_in_generate": True, "eos_token_id": None, "query_cost": 0,
    }  # fmt: skip
    got = MODELS["trained"].generate(**arguments, decoding="verified", acceptance_ratio=ratio)
    scores = torch.stack(got.scores)  # [tokens, batch, vocabulary]
    gaps = (scores.max(-1).values - scores.gather(-1, got.sequences[:, -12:].T[..., None])[..., 0]).flatten()
    assert gaps.max() <= -math.log(ratio) + 1e-5 and (gaps > 0.1).any() == (ratio < 1)
    expected = gaps_to_the_best(MODELS["trained"], arguments, got)
    torch.testing.assert_close(gaps, torch.tensor(expected), rtol=1e-4, atol=1e-4)
    if ratio == 1:
        plain = MODELS["trained"].generate(**arguments, decoding="autoregressive").scores
        torch.testing.assert_close(scores, torch.stack(plain), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_whole_text", [True, False], ids=["the whole text", "the new ids alone"])
def test_a_second_turn_looks_up_drafts(has_whole_text):
    model, arguments = MODELS["trained"], {**SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
    looks_up, is_used = {"decoding": "verified", "prompt_lookup_num_tokens": 7}, False
    for ids, more in pairwise(QUESTIONS[:4]):
        first = model.generate(**left_padded([ids]), **arguments, **looks_up)
        text = torch.cat([first.sequences, torch.tensor([more + more])], dim=-1)
        mask = torch.ones_like(text)
        expected = model.generate(text, attention_mask=mask, **arguments, decoding="autoregressive").sequences[0]
        new = text if has_whole_text else text[:, first[CACHE].get_seq_length() :]
        second, plain = (
            model.generate(new, attention_mask=mask, **arguments, **settings, **{CACHE: deepcopy(first[CACHE])})
            for settings in (looks_up, {**looks_up, "prompt_lookup_num_tokens": 0})
        )
        assert second.sequences[0, new.shape[1] :].tolist() == expected[text.shape[1] :].tolist()
        is_used |= not torch.equal(second.verified_drafts, plain.verified_drafts)
    assert is_used


def test_the_docstrings_example():
    results = doctest.testmod(verified, extraglobs={"torch": torch})
    assert results.attempted == 1 and results.failed == 0


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.3}], ids=["plain", "left to right"])
@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_another_drafter_is_a_function_and_changes_no_text(luck, more, monkeypatch):
    """As CONTRIBUTING says: one that knows the text, and is wrong in some places."""
    model, ids = MODELS["trained"], torch.tensor([QUESTIONS[0]])
    arguments = {"max_new_tokens": 30, "eos_token_id": None, "pad_token_id": PAD, "return_dict_in_generate": True}
    arguments |= more
    expected = model.generate(ids, **arguments, decoding="autoregressive").sequences
    known = pad(expected[0, ids.shape[1] :], (0, 9))

    def choose(state, queries, logits, settings, callbacks):
        state, tokens, num_new, is_possible, _ = verified.verify(state, queries, logits, settings, callbacks)
        first = (state.sequences.num_final + num_new).item()
        drafts = known[first : first + settings.window_size - 1][None]
        drafts = torch.where(torch.rand(drafts.shape) < luck, drafts, 3)
        kept = state.kept._replace(tokens=drafts, chances=torch.ones(drafts.shape))
        return verified.State(state.sequences, kept), tokens, num_new, is_possible

    mine = verified.VERIFIED._replace(choose=choose)
    monkeypatch.setattr("wedlm.generation.call.strategy_of", lambda *_: mine)
    torch.manual_seed(0)
    got = model.generate(ids, **arguments, decoding="verified", window_size=5, query_cost=0)
    assert torch.equal(got.sequences, expected)
    assert (got.forwards.item() == 7) == (luck == 1) and got.forwards <= 30, (
        "five tokens a step, and one from the prompt"
    )

"""Verified decoding: autoregressive text, and what it takes to get it."""

import math
from copy import deepcopy
from itertools import pairwise, product

import pytest
import torch
from decoded import policy_with, steps_of_rows
from draft_models import with_random_drafts
from helpers import CHECKPOINTS, DECODE, EOS, MASK, PAD, PROMPTS, left_padded, load, logits_of
from hypothesis import assume, given
from hypothesis import strategies as st
from make_trained import question
from reader_cases import READERS, readers_of
from reference_decoder import MOST_MATCHED, decode_verified
from tiers import property_settings
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation import BaseStreamer, ExponentialDecayLengthPenalty, RepetitionPenaltyLogitsProcessor

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.generation.row_cache import seen_entries
from wedlm.generation.sampling import without_mask
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
TRAINED_READERS = {  # the others' are made for a larger vocabulary
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
    """The text, and in the steps that were planned every draft, and which of them are accepted."""
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
        assert got.verified_drafts[row].tolist() == expected.judged
        assert got.accepted_drafts[row].tolist() == expected.accepted


@given(calls(), st.data())
@property_settings(120, deadline=None, derandomize=True)
def test_the_text_is_that_of_autoregressive_decoding(call, data):
    """With processors, criteria and stop strings, in ragged batches, in no more forwards than tokens."""
    model, prompts, arguments = call
    readers = TRAINED_READERS if model is MODELS["trained"] else READERS
    for name in data.draw(st.lists(st.sampled_from(sorted(readers)), max_size=2, unique=True), "readers"):
        arguments |= readers[name]
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
    processors, _ = readers_of(model, **arguments, decoding="verified")
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


def decay_of_infinity_is_nan() -> bool:
    """As on transformers 5.17, where no text can be written once min_length has forbidden the end token."""
    decay = ExponentialDecayLengthPenalty((0, 2.0), eos_token_id=0, input_ids_seq_length=0)
    return decay(torch.zeros(1, 1, dtype=torch.long), torch.full((1, 1), -math.inf)).isnan().item()


@given(calls(), st.data())
@property_settings(120, deadline=None, derandomize=True)
def test_each_token_has_at_least_the_ratio_of_the_best_probability(call, data):
    """With processors and criteria, in ragged batches. Only drafts may be other tokens than the best."""
    model, _, arguments = call
    ratio = data.draw(st.sampled_from([0.9, 0.5, 0.1, 1e-300]), "ratio")
    readers = TRAINED_READERS if model is MODELS["trained"] else READERS
    stateless = sorted(readers.keys() - {"stateful watermark", "guidance"})
    names = data.draw(st.lists(st.sampled_from(stateless), max_size=2, unique=True), "readers")
    assume(not decay_of_infinity_is_nan() or {"decay", "min length"} - {*names})
    for name in names:
        arguments |= readers[name]
    arguments |= data.draw(st.sampled_from([{}, {"suppress_tokens": [*range(4, 9)]}]), "suppressed")
    got = model.generate(**arguments, acceptance_ratio=ratio, decoding="verified", return_dict_in_generate=True)
    gaps = gaps_to_the_best(model, arguments, got)
    assert all(gap <= -math.log(ratio) + 1e-5 for gap in gaps)
    assert sum(gap > 1e-5 for gap in gaps) <= got.accepted_drafts.sum()
    assert not got.sequences[:, arguments["input_ids"].shape[1] :].eq(model.config.mask_token_id).any()


def test_a_lower_ratio_accepts_more_drafts():
    """Or the tests of other tokens than the best would be about nothing."""
    arguments = {**left_padded(QUESTIONS), **SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
    arguments |= {"query_cost": 0, "window_size": 16}
    others, speeds = [], []
    for ratio in (1.0, 0.5, 0.1):
        output = MODELS["trained"].generate(**arguments, decoding="verified", acceptance_ratio=ratio)
        others.append(sum(gap > 1e-5 for gap in gaps_to_the_best(MODELS["trained"], arguments, output)))
        speeds.append((output.accepted_drafts.sum() / output.verified_drafts.sum()).item())
    assert others[0] == 0 and all(before + 5 < after for before, after in pairwise(others)), others
    assert all(before + 0.02 < after for before, after in pairwise(speeds)), speeds


@pytest.mark.parametrize("decoding", ["streaming", "blockwise", "autoregressive"])
@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.2}], ids=str)
def test_other_decodings_do_not_read_the_ratio(decoding, more):
    arguments = {**left_padded(QUESTIONS[:3]), **SPECIAL, **more, "max_new_tokens": 12, "decoding": decoding}
    expected = MODELS["trained"].generate(**arguments)
    for sampling in ({}, {"do_sample": True, "top_k": 1}):
        assert torch.equal(MODELS["trained"].generate(**arguments, acceptance_ratio=1e-300, **sampling), expected)


def test_a_ratio_of_the_checkpoint_is_read_and_a_call_overrides_it():
    model = deepcopy(MODELS["trained"])
    model.generation_config.acceptance_ratio = 0.01
    arguments = {**left_padded(QUESTIONS[:3]), **SPECIAL, "max_new_tokens": 20, "decoding": "verified"}
    expected = MODELS["trained"].generate(**arguments)
    assert not torch.equal(model.generate(**arguments), expected)
    assert torch.equal(model.generate(**arguments, acceptance_ratio=1), expected)


@pytest.mark.parametrize("more", [{}, {"use_cache": False}, {"prefill_chunk_size": 3}], ids=str)
def test_drafts_are_looked_up_behind_a_gap_in_the_mask(more):
    """Tokens that the mask leaves out are no text, and no drafts."""
    model, (first, second) = MODELS["trained"], QUESTIONS[:2]
    ids = torch.tensor([[*first, PAD, PAD, *first, *second]])
    arguments = {"attention_mask": (ids != PAD).long(), **SPECIAL, "max_new_tokens": 30}
    expected = model.generate(ids, **arguments, decoding="autoregressive")
    looked_up = {"decoding": "verified", "prompt_lookup_num_tokens": 15, "window_size": 16}
    assert torch.equal(model.generate(ids, **arguments, **looked_up, **more), expected)


@pytest.mark.parametrize("window_size", [None, 16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_default_dtype_changes_nothing(dtype, window_size):
    arguments = {**left_padded(QUESTIONS[:3]), **SPECIAL, "max_new_tokens": 12, "decoding": "verified"}
    arguments |= {"prompt_lookup_num_tokens": 3, "window_size": window_size, "return_dict_in_generate": True}
    expected = MODELS["trained"].generate(**arguments)
    torch.set_default_dtype(dtype)
    try:
        got = MODELS["trained"].generate(**arguments)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(got.sequences, expected.sequences) and torch.equal(got.forwards, expected.forwards)


@pytest.mark.parametrize("decoding", ["streaming", "verified", "autoregressive"])
def test_a_look_up_of_nothing_is_turned_off(decoding):
    arguments = {**left_padded(QUESTIONS[:1]), **SPECIAL, "max_new_tokens": 12, "decoding": decoding}
    expected = MODELS["trained"].generate(**arguments)
    assert torch.equal(MODELS["trained"].generate(**arguments, prompt_lookup_num_tokens=0), expected)


LOOKS_UP = {"decoding": "verified", "prompt_lookup_num_tokens": 7}
LOOKS_NOTHING_UP = {"decoding": "verified", "prompt_lookup_num_tokens": 0}


def test_a_streamer_gets_the_text_with_looked_up_drafts():
    model, arguments = MODELS["trained"], {**SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
    for ids in QUESTIONS[:6]:
        inputs, recorder = left_padded([ids + ids]), Recorder()
        expected = model.generate(**inputs, **arguments, decoding="autoregressive").sequences[0]
        output = model.generate(**inputs, **arguments, **LOOKS_UP, streamer=recorder)
        (_, (prompt,)), *calls = recorder.calls
        given = prompt + [token for kind, value in calls if kind == "put" for token in value]
        assert given == output.sequences[0].tolist() == expected.tolist() and calls[-1] == ("end", None)
        drafted = [value for kind, value in calls if kind == "draft"]
        assert sum(map(len, drafted)) >= output.verified_drafts.sum() > 0


@pytest.mark.parametrize("has_whole_text", [True, False], ids=["the whole text", "the new ids alone"])
def test_a_second_turn_looks_up_drafts(has_whole_text):
    model, arguments = MODELS["trained"], {**SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
    is_used = False
    for ids, more in pairwise(QUESTIONS[:7]):
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


def test_a_look_up_changes_none_of_several_samples():
    model, is_used = MODELS["trained"], False
    for ids in QUESTIONS[:4]:
        inputs = left_padded([ids + ids])
        arguments = {**inputs, **SPECIAL, "max_new_tokens": 40, "do_sample": True, "num_return_sequences": 3}
        outputs = []
        for settings in (LOOKS_NOTHING_UP, LOOKS_UP):
            torch.manual_seed(5)
            outputs.append(model.generate(**arguments, **settings, return_dict_in_generate=True))
        plain, looked_up = outputs
        assert torch.equal(looked_up.sequences, plain.sequences)
        assert len({tuple(row) for row in plain.sequences.tolist()}) > 1
        is_used |= not torch.equal(looked_up.verified_drafts, plain.verified_drafts)
    assert is_used


@pytest.mark.few(1)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["q25", "q3"])
def test_recorded_autoregressive_runs(name, attention):
    model = load(CHECKPOINTS / name, attn_implementation=attention)
    runs = [run for run in DECODE["autoregressive"] if run["checkpoint"] == name]
    assert runs
    for run in runs:
        prompt = torch.tensor([PROMPTS[run["prompt"]]])
        output = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), **SPECIAL, max_new_tokens=run["max_new_tokens"],
            decoding="verified",
        )  # fmt: skip
        assert output[0, prompt.shape[1] :].tolist() == run["ids"]


# --- What drafts may change, and what they may not ---


@pytest.mark.few(1)
@pytest.mark.parametrize("draft", [7, MASK - 1])
def test_drafts_that_are_always_wrong_cost_a_forward_for_each_token(draft):
    model = MODELS["q3"]
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


def test_a_trained_model_has_drafts_accepted_and_refuted():
    """Or all the other tests would be about nothing."""
    inputs = left_padded(QUESTIONS)
    output = MODELS["trained"].generate(
        **inputs, **SPECIAL, max_new_tokens=40, decoding="verified", window_size=16, query_cost=0,
        return_dict_in_generate=True,
    )  # fmt: skip
    judged, accepted = output.verified_drafts.sum(0), output.accepted_drafts.sum(0)
    assert output.verified_drafts.shape == output.accepted_drafts.shape == (40, 15)
    assert (accepted[:4] > 4).all() and (judged - accepted)[0] > 3 and (judged - accepted)[:4].sum() > 20
    assert 1.7 < output.sequences[:, inputs["input_ids"].shape[1] :].ne(PAD).sum() / output.forwards.sum() < 4


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


def test_a_row_has_no_masks_but_those_of_its_groups(monkeypatch):
    """Nor does a row that has ended: a draft adapter would work for them in each step of the others."""
    queries, of_ended = VerifiedWindow.queries, []

    def checked(window, width, policy, **given):
        made = queries(window, width, policy, **given)
        num_masks = (made.input_ids == policy.mask_token_id).sum(-1)
        assert num_masks.equal(window.groups[:, -1].clamp(max=width) - window.groups[:, 0])
        of_ended.extend(num_masks[~window.alive].tolist())
        return made

    monkeypatch.setattr(VerifiedWindow, "queries", checked)
    arguments = {"max_new_tokens": 40, "decoding": "verified", "window_size": 16, "query_cost": 0}
    MODELS["trained"].generate(**left_padded(QUESTIONS[:12]), **SPECIAL, **arguments)
    assert of_ended and not any(of_ended)


@pytest.mark.parametrize("decoding", ["streaming", "verified"])
def test_no_new_ids_are_refused(decoding):
    model, ids = MODELS["q3"], torch.tensor([PROMPTS[2]])
    cache = model(ids, use_cache=True)[CACHE]
    with pytest.raises(
        ValueError, match="input_ids holds no tokens; pass the text whole, .* or at least its last token"
    ):
        model.generate(
            ids[:, len(ids[0]) :], attention_mask=torch.ones_like(ids), **{CACHE: cache}, decoding=decoding,
            max_new_tokens=4,
        )  # fmt: skip


@pytest.mark.parametrize("decoding", ["streaming", "verified"])
def test_a_prompt_that_is_all_in_the_cache(decoding):
    model, inputs = MODELS["q3"], left_padded(PROMPTS)
    arguments = {**inputs, **SPECIAL, "max_new_tokens": 12, "decoding": decoding}
    cache = DynamicCache()
    with torch.no_grad():
        positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        model(**inputs, position_ids=positions, **{CACHE: cache})
    assert cache.get_seq_length() == inputs["input_ids"].shape[1]
    assert torch.equal(model.generate(**arguments, **{CACHE: cache}), model.generate(**arguments))


@pytest.mark.parametrize("window_size", [1, 16])
def test_a_prompt_goes_through_without_a_mask(window_size):
    """Or a long one would cost a mask over all pairs of its tokens."""
    masks = []

    def record(module, args, arguments):
        masks.append(arguments["attention_mask"])

    handle = MODELS["q3"].register_forward_pre_hook(record, with_kwargs=True)
    try:
        MODELS["q3"].generate(
            **left_padded(PROMPTS), **SPECIAL, max_new_tokens=9, decoding="verified", window_size=window_size
        )
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


@pytest.mark.parametrize("ratio", [1.0, 0.1])
@pytest.mark.parametrize("processors", [[], [RepetitionPenaltyLogitsProcessor(1.02)]], ids=["plain", "reads the text"])
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


@pytest.mark.parametrize("more", [{"window_size": 1}, {"max_new_tokens": 1}], ids=str)
def test_a_streamer_of_a_window_without_drafts(more):
    model, ids = MODELS["trained"], torch.tensor([QUESTIONS[0]])
    arguments = {"attention_mask": torch.ones_like(ids), **SPECIAL, "max_new_tokens": 5, **more}
    recorder = Recorder()
    text = model.generate(ids, **arguments, decoding="verified", streamer=recorder)[0, len(ids[0]) :].tolist()
    assert [token for kind, value in recorder.calls[1:-1] if kind == "put" for token in value] == text
    assert all(value == [] for kind, value in recorder.calls if kind == "draft")


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


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["end token", "criterion"])
def test_the_text_ends_within_accepted_drafts(name):
    """And what was accepted behind the end is nobody's: not in the text, the cache or the counts."""
    model, num_within = MODELS["trained"], 0
    for ids in QUESTIONS[:10]:
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
        arguments = {**inputs, **SPECIAL, "max_new_tokens": 40, "return_dict_in_generate": True}
        whole = model.generate(**arguments, decoding="verified")
        text = whole.sequences[0, len(ids) :].tolist()
        for token in set(text):
            arguments |= {
                "end token": {"eos_token_id": token},
                "criterion": {"stopping_criteria": StoppingCriteriaList([EndsWith(token)])},
            }[name]
            expected = model.generate(**arguments, decoding="autoregressive")
            got = model.generate(**arguments, decoding="verified")
            assert torch.equal(got.sequences, expected.sequences)
            assert got[CACHE].get_seq_length() <= got.sequences.shape[1]
            num_tokens, num_accepted = got.sequences.shape[1] - len(ids), got.accepted_drafts.sum()
            assert got.forwards + num_accepted - num_tokens in (0, 1), "the last token may be a draft"
            num_within += (got.forwards + num_accepted - num_tokens).item()
    assert num_within > 5


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


def small_model():
    """Five tokens that are not MASK."""
    torch.manual_seed(5)
    config = WeDLMConfig(
        vocab_size=6, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, mask_token_id=5, eos_token_id=None, initializer_range=0.4,
    )  # fmt: skip
    return WeDLMForCausalLM(config).eval()


SMALL = small_model()
PROMPT = [3, 0, 1]
NUM_TOKENS, NUM_SAMPLES = 4, 20_000


SAMPLERS = {
    "plain": {},
    "look-up": {"prompt_lookup_num_tokens": 2},
    "top-k": {"top_k": 2},
    "temperature": {"temperature": 0.6},
    "top-p": {"top_p": 0.8},
    "repetition penalty": {"repetition_penalty": 1.5},
    "a processor of the caller": {"logits_processor": LogitsProcessorList([FavoursRepeats()])},
}


@torch.no_grad()
def exact_distribution(settings) -> torch.Tensor:
    """Returns the chance of each continuation of PROMPT, `[5, 5, ...]`, from one plain forward for each."""
    arguments = {"input_ids": torch.tensor([PROMPT]), "do_sample": True, "top_k": 0, "decoding": "verified"} | settings
    processors, _ = readers_of(SMALL, **arguments)
    chances = torch.zeros((5,) * NUM_TOKENS, dtype=torch.double)
    for continuation in product(range(5), repeat=NUM_TOKENS):
        ids = torch.tensor([[*PROMPT, *continuation]])
        logits = SMALL(ids).logits[0]
        chance = 1.0
        for place, token in enumerate(continuation):
            before = len(PROMPT) + place
            scores = processors(ids[:, :before], logits[None, before - 1].float().clone())
            chance *= scores[0].double().softmax(-1)[token].item()
        chances[continuation] = chance
    return chances


def chi_square_probability(counts: torch.Tensor, chances: torch.Tensor) -> float:
    """How probable it is to be at least as far from `chances`; what is expected less than five times is one case."""
    counts, expected = counts.flatten().double(), chances.flatten() * counts.sum()
    assert counts[expected == 0].sum() == 0, "what is impossible was drawn"
    rare = expected < 5
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    if expected[-1] == 0:
        counts, expected = counts[:-1], expected[:-1]
    statistic = ((counts - expected).pow(2) / expected).sum()
    return torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2).double(), statistic / 2).item()


def sampled_counts(settings, model=SMALL) -> tuple[torch.Tensor, torch.Tensor]:
    """How often each continuation came, and drafts accepted at each distance."""
    torch.manual_seed(1)
    counts, accepted = torch.zeros((5,) * NUM_TOKENS), 0
    for _ in range(10):
        output = model.generate(
            torch.tensor([PROMPT]), attention_mask=torch.ones(1, 3).long(), max_new_tokens=NUM_TOKENS, do_sample=True,
            num_return_sequences=NUM_SAMPLES // 10, decoding="verified", query_cost=0, pad_token_id=0,
            return_dict_in_generate=True, **{"top_k": 0, **settings},
        )  # fmt: skip
        new = output.sequences[:, len(PROMPT) :]
        counts.index_put_(tuple(new.T), torch.ones(len(new)), accumulate=True)
        accepted = accepted + output.accepted_drafts.sum(0)
    return counts, accepted


@pytest.mark.few(2)
@pytest.mark.parametrize("name", SAMPLERS)
def test_samples_have_the_autoregressive_distribution(name):
    counts, accepted = sampled_counts(SAMPLERS[name])
    in_step = "logits_processor" in SAMPLERS[name]  # thousands of rows, of which the slowest sets the pace
    assert (accepted[: 1 if in_step else 2] > NUM_SAMPLES / 50).all(), "drafts took part"
    assert chi_square_probability(counts, exact_distribution(SAMPLERS[name])) > 1e-3


def test_samples_with_a_draft_adapter_have_the_distribution_of_the_base():
    model = with_random_drafts(deepcopy(SMALL))
    counts, accepted = sampled_counts({}, model)
    with_mask = torch.tensor([[*PROMPT, SMALL.config.mask_token_id]])
    assert not torch.equal(model(with_mask).logits, SMALL(with_mask).logits)
    assert (accepted[:2] > NUM_SAMPLES / 50).all(), "drafts took part"
    assert chi_square_probability(counts, exact_distribution({})) > 1e-3


@pytest.mark.full
def test_a_wrong_rule_would_be_noticed(monkeypatch):
    """Drawing once more where a draft is refuted, which is what speculative decoding must not do."""

    verify = VerifiedWindow.verify

    def verify_wrongly(window, queries, logits, tokens, policy, callbacks):
        others = torch.distributions.Categorical(logits=without_mask(logits, policy.mask_token_id)).sample()
        num = min(tokens.shape[1], window.drafts.shape[1])
        is_draft = tokens[:, :num] == window.drafts[:, :num]
        tokens = torch.cat([torch.where(is_draft, tokens[:, :num], others[:, :num]), tokens[:, num:]], dim=-1)
        return verify(window, queries, logits, tokens, policy, callbacks)

    monkeypatch.setattr(VerifiedWindow, "verify", verify_wrongly)
    counts, _ = sampled_counts({})
    assert chi_square_probability(counts, exact_distribution({})) < 1e-6

"""Processors and criteria that read the text: as if the text had been written token by token."""

import pytest
import torch
from callback_cases import CALLBACKS, callbacks_of, word_tokenizer
from decoded import SPECIAL
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, left_padded, load, logits_of
from hypothesis import given
from hypothesis import strategies as st
from reference_decoder import decode
from tiers import property_settings
from transformers import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from wedlm import fuse
from wedlm.generation.parameters import DECODINGS
from wedlm.generation.validation import NoTokenError

MODELS = {name: load(CHECKPOINTS / name).double() for name in ("q25", "q3")}  # where no rounding decides


@pytest.fixture
def model():
    return MODELS["q3"]


STATEFUL = {"allowed", "stateful watermark", "guidance"}  # or not known to be stateless


@given(st.data())
@property_settings(60, deadline=None, derandomize=True)
def test_any_batch_equals_the_reference_row_by_row(data):
    model = MODELS[data.draw(st.sampled_from(["q25", "q3"]), "model")]
    prompts = data.draw(st.lists(st.lists(st.integers(3, 158), min_size=1, max_size=12), min_size=1, max_size=4))
    names = data.draw(st.lists(st.sampled_from(sorted(CALLBACKS)), min_size=1, max_size=2, unique=True), "callbacks")
    arguments = {
        "max_new_tokens": data.draw(st.integers(1, 16), "max_new_tokens"),
        "window_size": data.draw(st.integers(1, 12), "window_size"),
        "entropy_threshold": data.draw(st.sampled_from([None, 0.4, 2.0, 3.0, 100.0]), "threshold"),
        "distance_penalty": data.draw(st.sampled_from([0.0, 0.02, 0.1]), "penalty"),
        "decoding": data.draw(st.sampled_from(["streaming", "blockwise"]), "decoding"),
    }
    end_tokens = [EOS, *data.draw(st.lists(st.integers(3, 158), max_size=8, unique=True), "end tokens")]
    more = {"eos_token_id": end_tokens, "pad_token_id": PAD}
    for name in names:
        more |= CALLBACKS[name]
    inputs = left_padded(prompts)
    width = inputs["input_ids"].shape[1]
    got = model.generate(**inputs, **arguments, **more, return_dict_in_generate=True)
    assert torch.equal(got.sequences[:, :width], inputs["input_ids"])
    longest = 0
    for row, prompt in enumerate(prompts):
        own = {key: value[[row]] for key, value in inputs.items()}
        processors, criteria = callbacks_of(model, **own, **arguments, **more)
        expected = decode(
            logits_of(model), prompt, mask_token_id=MASK, eos_token_ids=end_tokens, **arguments, processors=processors,
            criteria=criteria, padding=[PAD] * (width - len(prompt)),
        )  # fmt: skip
        num_tokens = len(expected.ids)
        longest = max(longest, num_tokens)
        text = got.sequences[row, width:]
        assert text[:num_tokens].tolist() == expected.ids and set(text[num_tokens:].tolist()) <= {PAD}
        if not STATEFUL & set(names) or len(prompts) == 1:
            assert got.forwards[row] == expected.forwards
            assert got.prefix_cacheability[row] == pytest.approx(num_tokens / max(num_tokens, expected.window_queries))
        assert got.forwards[row] >= expected.forwards
    assert got.sequences.shape[1] == width + longest


def test_several_tokens_are_chosen_per_forward(model):
    for name in CALLBACKS.keys() - {"decay"}:  # transformers 5.17 makes a NaN of a suppressed end token there
        output = model.generate(
            **left_padded(PROMPTS), **SPECIAL, **CALLBACKS[name] | {"min_new_tokens": 24}, max_new_tokens=24,
            entropy_threshold=100.0, window_size=16, return_dict_in_generate=True,
        )  # fmt: skip
        assert output.forwards.tolist() == [2] * 5, name


@pytest.mark.parametrize("kinds", [("processor",), ("criterion",), ("processor", "criterion")], ids=str)
@pytest.mark.parametrize("decoding", ["streaming", "blockwise"])
def test_callbacks_with_state_are_called_as_in_transformers_loop(model, kinds, decoding):
    """With contiguous ids of 64 bits, whatever the prompt's; what they return may be of other types."""
    calls = []

    def record(kind, ids):
        assert ids.is_contiguous() and ids.dtype == torch.long
        calls.append((kind, ids.tolist()))

    def processor(ids, scores):
        record("processor", ids)
        return scores.double()

    def criterion(ids, scores):
        record("criterion", ids)
        return (ids[:, -1] % 7 == 0).int()

    inputs = left_padded(PROMPTS)
    width, pad = inputs["input_ids"].shape[1], 11  # no zero, so that what stands behind the end of a row is seen
    processors = LogitsProcessorList([processor] if "processor" in kinds else [])
    criteria = StoppingCriteriaList([criterion] if "criterion" in kinds else [])
    output = model.generate(
        **inputs | {"input_ids": inputs["input_ids"].int()}, eos_token_id=EOS, pad_token_id=pad, max_new_tokens=30,
        entropy_threshold=3.0, decoding=decoding, logits_processor=processors, stopping_criteria=criteria,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert len(processors) == ("processor" in kinds) and len(criteria) == ("criterion" in kinds), "the caller's lists"
    rows, expected = output.sequences.tolist(), []
    for column in range(width, len(rows[0])):
        expected += [("processor", [row[:column] for row in rows])] * ("processor" in kinds)
        expected += [("criterion", [row[: column + 1] for row in rows])] * ("criterion" in kinds)
    assert calls == expected and max(output.tokens_per_forward) > 1.5
    for row in rows if "criterion" in kinds else []:
        ends = [i for i, token in enumerate(row[width:]) if token % 7 == 0]
        assert not ends or set(row[width + ends[0] + 1 :]) <= {pad}


@pytest.mark.parametrize("name", ["strings", "end tokens"])
@pytest.mark.parametrize("more", [{"entropy_threshold": 3.0}, {"repetition_penalty": 1.2}], ids=str)
def test_a_text_ends_where_it_would_have_token_by_token(model, name, more):
    """It is a beginning of the text that has no such end."""
    arguments = {**left_padded(PROMPTS), "eos_token_id": None, "pad_token_id": PAD, "max_new_tokens": 30, **more}
    tokens = {26, 100, 118}
    stops = {
        "strings": {"stop_strings": ["w026", "100", "w118"], "tokenizer": word_tokenizer()},
        "end tokens": {"stopping_criteria": [EosTokenCriteria(sorted(tokens))]},
    }
    free = model.generate(**arguments)[:, 40:].tolist()
    got = model.generate(**arguments, **stops[name])[:, 40:].tolist()
    ends = [next((i + 1 for i, token in enumerate(row) if token in tokens), len(row)) for row in free]
    assert min(ends) < 30, "nothing stops"
    assert got == [row[:end] + [PAD] * (max(ends) - end) for row, end in zip(free, ends, strict=True)]


def test_a_limit_of_the_callers_may_be_beyond_max_new_tokens(model):
    arguments = {**left_padded(PROMPTS[2:3]), "eos_token_id": None, "pad_token_id": PAD}
    width = len(PROMPTS[2])
    longer = model.generate(**arguments, max_new_tokens=5, stopping_criteria=[MaxLengthCriteria(width + 12)])
    assert torch.equal(longer, model.generate(**arguments, max_new_tokens=12))
    shortest = model.generate(**arguments, max_new_tokens=5, stopping_criteria=[MaxLengthCriteria(3)])
    assert torch.equal(shortest, model.generate(**arguments, max_new_tokens=1))


def test_a_criterion_is_given_the_scores_of_the_text(model):
    widths = []

    def criterion(ids, scores):
        widths.append((ids.shape[1] - 40, None if scores is None else len(scores)))
        return False

    arguments = {**left_padded(PROMPTS), **SPECIAL, "max_new_tokens": 8, "stopping_criteria": [criterion]}
    model.generate(**arguments)
    model.generate(**arguments, return_dict_in_generate=True, output_scores=True)
    assert widths == [(n, None) for n in range(1, 9)] + [(n, n) for n in range(1, 9)]


def test_rows_that_end_at_different_times_need_a_pad_token(model, monkeypatch):
    for name in ("eos_token_id", "pad_token_id"):
        monkeypatch.setattr(model.generation_config, name, None)
    arguments = {"max_new_tokens": 9, "stopping_criteria": [EosTokenCriteria(20)]}
    message = "pad_token_id is None, .* stopping_criteria='EosTokenCriteria'; pass pad_token_id"
    with pytest.raises(ValueError, match=message):
        model.generate(**left_padded(PROMPTS), **arguments)
    assert model.generate(**left_padded(PROMPTS[:1]), **arguments).shape[1] <= len(PROMPTS[0]) + 9


@pytest.mark.parametrize("decoding", ["streaming", "autoregressive"])
def test_no_processor_brings_mask_back(model, decoding):
    def allow(tokens):
        def processor(ids, scores):
            only = torch.full_like(scores, -torch.inf)
            only[:, tokens] = torch.arange(len(tokens)).to(scores)
            return only

        return {"logits_processor": [processor], "max_new_tokens": 3, "decoding": decoding}

    output = model.generate(**left_padded(PROMPTS), **SPECIAL, **allow([9, MASK]))
    assert output[:, 40:].eq(9).all()
    if decoding == "streaming":
        with pytest.raises(ValueError, match="No token has a finite score in row 0 at position 1: .*; loosen them"):
            model.generate(**left_padded(PROMPTS), **SPECIAL, **allow([]))


def test_scores_are_those_the_tokens_were_chosen_from_and_zeros_behind_the_end(model):
    output = model.generate(
        **left_padded(PROMPTS), **SPECIAL, max_new_tokens=30, entropy_threshold=2.0, window_size=16,
        do_sample=True, temperature=0.5, top_k=1, return_dict_in_generate=True, output_scores=True, output_logits=True,
    )  # fmt: skip
    num_tokens = (output.tokens_per_forward * output.forwards).round().long()
    assert num_tokens.min() < num_tokens.max() == len(output.scores) == len(output.logits), "rows of one length"
    is_text = torch.arange(len(output.scores))[:, None] < num_tokens
    scores, logits = torch.stack(output.scores), torch.stack(output.logits)  # [tokens, batch, vocabulary]
    assert scores.dtype == logits.dtype == torch.float32
    assert not scores[~is_text].any() and not logits[~is_text].any()
    written, others = output.sequences[:, 40:].T[is_text][:, None], torch.arange(160) != MASK
    assert torch.equal(scores[is_text].isfinite().nonzero()[:, 1:], written)
    assert torch.equal(logits[is_text][:, others].max(-1).values / 0.5, scores[is_text].gather(1, written)[:, 0])
    assert logits[is_text][:, MASK].isfinite().all()


def test_scores_come_only_when_asked_for(model):
    arguments = {**left_padded(PROMPTS[:2]), **SPECIAL, "max_new_tokens": 4, "return_dict_in_generate": True}
    assert (output := model.generate(**arguments)).scores is None and output.logits is None
    assert (output := model.generate(**arguments, output_scores=True)).scores is not None and output.logits is None
    assert (output := model.generate(**arguments, output_logits=True)).scores is None and output.logits is not None
    sequences = model.generate(**arguments | {"return_dict_in_generate": False}, output_scores=True)
    assert torch.equal(sequences, output.sequences)


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("value, is_fused", [(float("nan"), False), (float("inf"), True)])
def test_a_broken_weight_is_named(decoding, value, is_fused):
    model = load(CHECKPOINTS / "q3")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 2] = value
    if is_fused:
        fuse(model)
    with pytest.raises(NoTokenError, match=r"The weight model\.layers\.1\.mlp\.up_proj\.weight holds values"):
        model.generate(torch.tensor([PROMPTS[1]]), decoding=decoding, max_new_tokens=4)


def test_scores_that_a_processor_broke_are_not_the_weights_fault(model):
    broken = {"logits_processor": [lambda ids, scores: scores * float("nan")]}
    with pytest.raises(NoTokenError, match="suppress_tokens and the other logits processors"):
        model.generate(torch.tensor([PROMPTS[1]]), **broken, max_new_tokens=4)


def test_a_criterion_that_stops_nothing_changes_no_count(model):
    """Rows that have all their tokens wait for the others, and take part in no forward pass more."""
    inputs = left_padded(torch.randint(3, 159, (3, 6), generator=torch.manual_seed(1)).tolist())
    call = {**inputs, "decoding": "verified", "max_new_tokens": 20, "query_cost": 0, "prompt_lookup_num_tokens": 5}
    call |= {"eos_token_id": None, "pad_token_id": PAD, "return_dict_in_generate": True}
    plain = model.generate(**call)
    got = model.generate(**call, stopping_criteria=StoppingCriteriaList([lambda ids, scores: ids[:, -1] < 0]))
    assert torch.equal(got.sequences, plain.sequences) and plain.forwards.unique().numel() > 1
    assert torch.equal(got.forwards, plain.forwards)
    assert torch.equal(got.prefix_cacheability, plain.prefix_cacheability)

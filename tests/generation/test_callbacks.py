"""Processors and criteria that read the text: as if the text had been written token by token."""

import math
import time

import pytest
import torch
from callback_cases import CALLBACKS, callbacks_of
from decoded import SPECIAL
from helpers import CHECKPOINTS, EOS, MASK, PAD, PROMPTS, left_padded, load, logits_of
from hypothesis import given
from hypothesis import strategies as st
from reference_decoder import decode
from tiers import property_settings
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    EosTokenCriteria,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)

from wedlm import fuse
from wedlm.generation.parameters import DECODINGS
from wedlm.generation.validation import NoTokenError

MODELS = {name: load(CHECKPOINTS / name).double() for name in ("q25", "q3")}  # where no rounding decides


@pytest.fixture
def model():
    return MODELS["q3"]


@pytest.fixture(scope="module")
def tokenizer():
    """A word per id: "0 " to "159 ", and what transformers looks a vocabulary up by for stop strings."""
    words = {f"{i} ": i for i in range(160)} | {"abcdef": 160}
    core = Tokenizer(models.WordLevel(words, unk_token="0 "))
    core.decoder = decoders.Fuse()
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="0 ", eos_token="2 ", mask_token="159 ")


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


class Recorded(LogitsProcessor):
    """Also a grammar in the way of the well-known ones: a state per row, taken on by the last token of every call."""

    def __init__(self, calls):
        self.calls = calls
        self.states = None

    def __call__(self, input_ids, scores):
        self.calls.append(("processor", input_ids.tolist()))
        if self.states is None:
            self.states = [0] * len(input_ids)
        else:
            self.states = [7 * s + t for s, t in zip(self.states, input_ids[:, -1].tolist(), strict=True)]
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        for row, state in enumerate(self.states):
            allowed[row, [EOS, *(3 + (state + k * k) % 150 for k in range(20))]] = True
        return scores.masked_fill(~allowed, -torch.inf)


class RecordedCriterion(StoppingCriteria):
    """Ends a row at its third token that 5 divides, counted from call to call."""

    def __init__(self, calls, start):
        self.calls, self.start = calls, start
        self.counts = None

    def __call__(self, input_ids, scores, **kwargs):
        self.calls.append(("criterion", input_ids.tolist()))
        if self.counts is None:
            self.counts = torch.zeros(len(input_ids), dtype=torch.long)
        self.counts += input_ids[:, -1] % 5 == 0
        return self.counts >= 3


@pytest.mark.parametrize("kinds", [("processor",), ("criterion",), ("processor", "criterion")], ids=str)
@pytest.mark.parametrize("decoding", ["streaming", "blockwise"])
def test_callbacks_with_state_are_called_as_in_transformers_loop(model, kinds, decoding):
    inputs = left_padded(PROMPTS)
    width = inputs["input_ids"].shape[1]
    pad = 11  # no zero, so that what stands behind the end of a row is seen
    calls = []
    processors = LogitsProcessorList([Recorded(calls)] if "processor" in kinds else [])
    criteria = StoppingCriteriaList([RecordedCriterion(calls, width)] if "criterion" in kinds else [])
    given = [list(processors), list(criteria)]
    output = model.generate(
        **inputs, eos_token_id=EOS, pad_token_id=pad, max_new_tokens=30, entropy_threshold=3.0,
        decoding=decoding, logits_processor=processors, stopping_criteria=criteria, return_dict_in_generate=True,
    )  # fmt: skip
    assert [list(processors), list(criteria)] == given, "the caller's lists were changed"
    rows = output.sequences.tolist()
    expected = []
    for column in range(width, len(rows[0])):
        expected += [("processor", [row[:column] for row in rows])] * ("processor" in kinds)
        expected += [("criterion", [row[: column + 1] for row in rows])] * ("criterion" in kinds)
    assert calls == expected
    assert max(output.tokens_per_forward) > 1.5
    if "criterion" in kinds:
        for row in rows:
            new = row[width:]
            marks = [i for i, token in enumerate(new) if token % 5 == 0]
            if len(marks) >= 3 and marks[2] < len(new) - 1:
                assert set(new[marks[2] + 1 :]) == {pad}


def test_readers_are_given_what_transformers_loop_gives_them(model):
    """Contiguous ids of 64 bits, whatever the prompt's; what they return may be of other types."""

    def processor(ids, scores):
        assert ids.is_contiguous() and ids.dtype == torch.long and len(ids.view(-1)) == ids.numel()
        return scores.double()

    def criterion(ids, scores):
        assert ids.is_contiguous() and ids.dtype == torch.long
        return (ids[:, -1] % 7 == 0).int()

    inputs = left_padded(PROMPTS)
    arguments = {**SPECIAL, "max_new_tokens": 20, "attention_mask": inputs["attention_mask"]}
    arguments |= {"logits_processor": [processor], "stopping_criteria": [criterion]}
    expected = model.generate(inputs["input_ids"], **arguments)
    assert torch.equal(model.generate(inputs["input_ids"].int(), **arguments), expected)
    rows = expected[:, 40:].tolist()
    assert all(row[: i + 1][-1] % 7 == 0 for row in rows for i in range(1, len(row)) if row[i] == PAD != row[i - 1])


def test_a_score_of_infinity_is_chosen(model):
    def forces(ids, scores):
        scores[:, 77] = torch.inf
        return scores

    arguments = {**left_padded(PROMPTS), **SPECIAL, "max_new_tokens": 5, "logits_processor": [forces]}
    for do_sample in (False, True):
        output = model.generate(
            **arguments, do_sample=do_sample, return_dict_in_generate=True, output_logits=True, output_scores=True
        )
        assert output.sequences[:, 40:].eq(77).all()
        assert all(column.isfinite().all() for column in output.logits), "what the processor did in place is seen"
        assert all(column[:, 77].eq(torch.inf).all() for column in output.scores)


def first(prompt, row, holds):
    """The row up to the first token where `holds` of the text so far."""
    return next((row[: i + 1] for i in range(len(row)) if holds(prompt, row[: i + 1])), row)


class EndsWith(StoppingCriteria):
    def __init__(self, tokens):
        self.tokens = torch.tensor(sorted(tokens))

    def __call__(self, input_ids, scores, **kwargs):
        return torch.isin(input_ids[:, -1], self.tokens)


class AfterCalls(StoppingCriteria):
    def __init__(self, number):
        self.left = number

    def __call__(self, input_ids, scores, **kwargs):
        self.left -= 1
        return torch.full((len(input_ids),), self.left == 0)


def free_text(model, **arguments):
    output = model.generate(**left_padded(PROMPTS), **{**SPECIAL, "max_new_tokens": 30, **arguments})
    rows, is_cut = output[:, 40:].tolist(), arguments.get("eos_token_id", EOS) is not None
    return [row[: row.index(EOS) + 1] if is_cut and EOS in row else row for row in rows]


def ends_in(text, *strings):
    """Says if one of the strings ends in the last token."""
    words, before = ("".join(f"{token} " for token in tokens) for tokens in (text, text[:-1]))
    return any(words.count(string) > before.count(string) for string in strings)


SOME = {26, 100, 118}
STOPS = {
    "strings": (lambda: {"stop_strings": ["14 ", "0 1"]}, lambda prompt, new: ends_in(prompt + new, "14 ", "0 1")),
    "a bool": (
        lambda: {"stopping_criteria": [lambda ids, scores: ids.shape[1] >= 49]},
        lambda prompt, new: len(new) == 9,
    ),
    "end token": (
        lambda: {"stopping_criteria": [EosTokenCriteria(sorted(SOME))]},
        lambda prompt, new: new[-1] in SOME,
    ),
    "two": (
        lambda: {"stop_strings": ["5 1"], "stopping_criteria": [AfterCalls(7)]},
        lambda prompt, new: ends_in(prompt + new, "5 1") or len(new) == 7,
    ),
}


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize(
    "settings", [{"entropy_threshold": 3.0}, {"decoding": "blockwise", "repetition_penalty": 1.2}], ids=str
)
def test_text_ends_where_it_would_have_token_by_token(model, tokenizer, name, settings):
    """Which is a beginning of the text that has no such end."""
    make, holds = STOPS[name]
    free = free_text(model, **settings, **({"eos_token_id": None} if name == "end token" else {}))
    got = model.generate(
        **left_padded(PROMPTS), **SPECIAL, max_new_tokens=30, **settings, tokenizer=tokenizer, **make(),
        return_dict_in_generate=True,
    )  # fmt: skip
    expected = [first(prompt, row, holds) for prompt, row in zip(PROMPTS, free, strict=True)]
    assert expected != free, "nothing stops"
    longest = max(map(len, expected))
    assert got.sequences[:, 40:].tolist() == [row + [PAD] * (longest - len(row)) for row in expected]
    num_tokens = (got.tokens_per_forward * got.forwards).round().tolist()
    assert num_tokens == [len(row) for row in expected]


def test_a_limit_of_the_callers_may_be_beyond_max_new_tokens(model):
    arguments = {**left_padded(PROMPTS[2:3]), "eos_token_id": None, "pad_token_id": PAD}
    width = len(PROMPTS[2])
    longer = model.generate(**arguments, max_new_tokens=5, stopping_criteria=[MaxLengthCriteria(width + 12)])
    assert torch.equal(longer, model.generate(**arguments, max_new_tokens=12))
    shortest = model.generate(**arguments, max_new_tokens=5, stopping_criteria=[MaxLengthCriteria(3)])
    assert torch.equal(shortest, model.generate(**arguments, max_new_tokens=1))


def test_when_time_is_up_every_row_ends_with_its_next_token(model):
    rows = free_text(model, entropy_threshold=3.0)
    output = model.generate(
        **left_padded(PROMPTS), **SPECIAL, max_new_tokens=30, entropy_threshold=3.0,
        stopping_criteria=[MaxTimeCriteria(1.0, initial_timestamp=time.time() - 2)],
    )  # fmt: skip
    assert output[:, 40:].tolist() == [row[:1] for row in rows]
    assert free_text(model, entropy_threshold=3.0, max_time=600.0) == rows


def test_a_criterion_is_given_the_scores_of_the_text(model):
    widths = []

    class Reads(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            widths.append((input_ids.shape[1] - 40, None if scores is None else len(scores)))
            return torch.zeros(len(input_ids), dtype=torch.bool)

    arguments = {**left_padded(PROMPTS), **SPECIAL, "max_new_tokens": 8, "stopping_criteria": [Reads()]}
    model.generate(**arguments)
    assert widths == [(n, None) for n in range(1, 9)]
    widths.clear()
    model.generate(**arguments, return_dict_in_generate=True, output_scores=True)
    assert widths == [(n, n) for n in range(1, 9)]


def test_rows_that_end_at_different_times_need_a_pad_token(model, monkeypatch):
    for name in ("eos_token_id", "pad_token_id"):
        monkeypatch.setattr(model.generation_config, name, None)
    arguments = {"max_new_tokens": 9, "stopping_criteria": [EndsWith({20})]}
    with pytest.raises(ValueError, match="pad_token_id is None, .* stopping_criteria='EndsWith'; pass pad_token_id"):
        model.generate(**left_padded(PROMPTS), **arguments)
    assert model.generate(**left_padded(PROMPTS[:1]), **arguments).shape[1] <= len(PROMPTS[0]) + 9


class Only(LogitsProcessor):
    """From the third token on only those given are allowed, the first of them best."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] < 42:
            return scores
        only = torch.full_like(scores, -torch.inf)
        for score, token in enumerate(reversed(self.tokens)):
            only[:, token] = score
        return only


def test_row_and_position_of_a_choice_without_choices(model):
    with pytest.raises(ValueError, match="No token has a finite score in row 0 at position 3: .*; loosen them"):
        model.generate(**left_padded(PROMPTS), **SPECIAL, max_new_tokens=9, logits_processor=[Only([])])


@pytest.mark.parametrize("decoding", ["streaming", "autoregressive"])
def test_no_processor_brings_mask_back(model, decoding):
    output = model.generate(
        **left_padded(PROMPTS), **SPECIAL, max_new_tokens=9, decoding=decoding, logits_processor=[Only([MASK, 9])]
    )
    assert not output.eq(MASK).any()
    assert output[0, 42:].tolist() == [9] * 7


def test_scores_are_those_the_tokens_were_chosen_from(model):
    """The reference's forwards give the raw logits and the processed scores, in the order of the text."""
    prompt = PROMPTS[2]
    arguments = {"max_new_tokens": 16, "entropy_threshold": None, "window_size": 6}
    output = model.generate(
        **left_padded([prompt]), **SPECIAL, **arguments, do_sample=True, temperature=0.7, top_k=1,
        return_dict_in_generate=True, output_scores=True, output_logits=True,
    )  # fmt: skip
    forward, rows = logits_of(model), {}

    def recorded(tokens, positions):
        logits = forward(tokens, positions)
        for position, row in zip(positions, logits, strict=True):
            rows.setdefault(position, []).append(row)
        return logits

    expected = decode(recorded, prompt, mask_token_id=MASK, eos_token_ids=[EOS], **arguments)
    assert output.sequences[0, len(prompt) :].tolist() == expected.ids
    assert len(output.scores) == len(output.logits) == len(expected.ids)
    filled_at = {p: k for k, step in enumerate(expected.steps) for p, _ in step["filled"]}
    windows = [range(step["committed"], step["committed"] + len(step["window"])) for step in expected.steps]
    out_of_order = 0
    for i, (scores, logits) in enumerate(zip(output.scores, output.logits, strict=True)):
        position = len(prompt) + i
        seen = [k for k, window in enumerate(windows) if i in window]
        raw = rows[position][seen.index(filled_at[position])].float()
        torch.testing.assert_close(logits[0], raw)
        best = raw.index_fill(0, torch.tensor([MASK]), -torch.inf).max()
        assert scores[0].isfinite().nonzero()[:, 0].tolist() == [expected.ids[i]]
        torch.testing.assert_close(scores[0, expected.ids[i]], best / 0.7)
        out_of_order += i > 0 and filled_at[position] < filled_at[position - 1]
    assert out_of_order > 0


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.2, "do_sample": True}], ids=str)
def test_transition_scores_of_ragged_batches(model, more):
    torch.manual_seed(2)
    output = model.generate(
        **left_padded(PROMPTS), **SPECIAL, max_new_tokens=30, entropy_threshold=2.0, window_size=16, **more,
        return_dict_in_generate=True, output_scores=True, output_logits=True,
    )  # fmt: skip
    new = output.sequences[:, 40:]
    num_tokens = (output.tokens_per_forward * output.forwards).round().long()
    assert num_tokens.min() < num_tokens.max(), "rows of one length"
    assert len(output.scores) == len(output.logits) == new.shape[1]
    assert all(column.shape == (5, 160) and column.dtype == torch.float32 for column in output.scores + output.logits)
    scores = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    assert scores.shape == new.shape and scores.sum().isfinite()
    for row in range(5):
        assert all(column[row].eq(0).all() for column in output.scores[num_tokens[row] :])
        assert all(column[row].eq(0).all() for column in output.logits[num_tokens[row] :])
        for token, scores, logits in zip(new[row, : num_tokens[row]], output.scores, output.logits, strict=False):
            assert scores[row, MASK] == -math.inf and logits[row, MASK].isfinite()
            assert scores[row, token].isfinite()
            if not more:
                assert token == scores[row].argmax()
                others = torch.arange(160) != MASK
                assert torch.equal(scores[row, others], logits[row, others])


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


def test_scores_that_a_processor_broke_are_not_the_weights_fault():
    model = load(CHECKPOINTS / "q3")

    def break_scores(ids, scores):
        return scores * float("nan")

    with pytest.raises(NoTokenError, match="suppress_tokens and the other logits processors"):
        model.generate(torch.tensor([PROMPTS[1]]), logits_processor=[break_scores], max_new_tokens=4)

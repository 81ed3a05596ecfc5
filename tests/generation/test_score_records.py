"""The scores and logits of every new token."""

import math

import pytest
import torch
from decoded import SPECIAL
from helpers import CHECKPOINTS, EOS, MASK, NAMES, PROMPTS, left_padded, load, logits_of
from reference_decoder import decode


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


DOUBLE = {name: load(CHECKPOINTS / name).double() for name in ("q25", "q3")}  # where no rounding decides


@pytest.fixture(params=NAMES)
def model(request):
    return DOUBLE[request.param]


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.2}, {"do_sample": True, "top_k": 5}], ids=str)
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
    for normalize in (False, True):
        scores = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=normalize)
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

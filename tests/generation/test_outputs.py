"""The counts of an output."""

import pytest
import torch
from helpers import (
    PAD,
    PROMPTS,
    left_padded,
)
from transformers import (
    StoppingCriteria,
    StoppingCriteriaList,
)

from wedlm.generation.window import statistics


def test_statistics_of_known_counts():
    """By hand: 5 tokens in 2 forwards over 8 window rows; 4 tokens in 1 forward that needed fewer rows than tokens."""
    got = statistics(torch.tensor([5, 4]), torch.tensor([2, 1]), torch.tensor([8, 3]))
    assert got["forwards"].tolist() == [2, 1]
    assert got["tokens_per_forward"].tolist() == [2.5, 4.0]
    assert got["prefix_cacheability"].tolist() == [0.625, 1.0]


@pytest.mark.parametrize("pad_token_id", [PAD, 11])
def test_autoregressive_decoding_counts_a_forward_per_token(model, pad_token_id):
    inputs = left_padded(PROMPTS)
    arguments = {"decoding": "autoregressive", "max_new_tokens": 12, "return_dict_in_generate": True}
    free = model.generate(**inputs, **arguments, pad_token_id=PAD, eos_token_id=None).sequences[:, 40:]
    end_token = free[0, 4].item()
    ended = model.generate(**inputs, **arguments, pad_token_id=pad_token_id, eos_token_id=[end_token, 11])
    expected = [next((i + 1 for i, token in enumerate(row) if token in (end_token, 11)), 12) for row in free.tolist()]
    assert min(expected) < 12
    assert ended.forwards.tolist() == expected
    assert ended.tokens_per_forward.tolist() == ended.prefix_cacheability.tolist() == [1.0] * 5


class StopsTheFirstRow(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.arange(len(input_ids)).eq(0) & (input_ids.shape[1] >= 43)


def test_autoregressive_rows_that_a_criterion_ended_count_no_padding(model):
    output = model.generate(
        **left_padded(PROMPTS),
        decoding="autoregressive",
        max_new_tokens=12,
        return_dict_in_generate=True,
        eos_token_id=158,
        suppress_tokens=[158],
        pad_token_id=PAD,
        stopping_criteria=StoppingCriteriaList([StopsTheFirstRow()]),
    )
    assert not output.sequences[:, 40:].eq(158).any()
    assert output.forwards.tolist() == [3, 12, 12, 12, 12]

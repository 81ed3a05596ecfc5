"""Prompts: their chunks, and those that cannot be decoded from."""

import pytest
import torch
from decoded import MODELS
from helpers import (
    CHECKPOINTS,
    MASK,
    PAD,
    PROMPTS,
    random_tokens,
)
from transformers import (
    AutoConfig,
)

from wedlm import WeDLMForCausalLM
from wedlm.generation.transformers_internals import CACHE


@pytest.mark.parametrize(
    "input_ids, attention_mask, message",
    [
        ([[5, 6, MASK, 7]], None, "input_ids holds the MASK token, mask_token_id=159, .*take it out"),
        ([[5, 6, 7], [5, 6, 0]], [[1, 1, 1], [1, 1, 0]], "attention_mask .* has zeros behind .* pad on the left"),
        ([[5, 6, 7]], [[0, 1, 1, 1]], r"attention_mask has shape \(1, 4\), input_ids \(1, 3\); pass the mask that"),
        ([[5, 6, 7], [0, 0, 0]], [[1, 1, 1], [0, 0, 0]], "input_ids holds an empty prompt; give every row"),
    ],
)
def test_prompts_that_cannot_be_are_refused(input_ids, attention_mask, message):
    input_ids = torch.tensor(input_ids)
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else torch.tensor(attention_mask)
    with pytest.raises(ValueError, match=message):
        MODELS["q3"].generate(input_ids, attention_mask=attention_mask, max_new_tokens=4)


def test_a_batch_of_no_rows_is_refused():
    empty = torch.zeros(0, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="input_ids holds no rows; pass at least one prompt"):
        MODELS["q3"].generate(empty, attention_mask=empty, max_new_tokens=4)


def test_a_masked_out_mask_token_is_padding():
    ids, mask = torch.tensor([[MASK, 5, 6]]), torch.tensor([[0, 1, 1]])
    output = MODELS["q3"].generate(ids, attention_mask=mask, max_new_tokens=4)
    assert torch.equal(output[0, 3:], MODELS["q3"].generate(ids[:, 1:], max_new_tokens=4)[0, 2:])


def test_prompts_beyond_the_models_positions(caplog):
    model = WeDLMForCausalLM(AutoConfig.from_pretrained(CHECKPOINTS / "q3", max_position_embeddings=16)).eval()
    with pytest.raises(ValueError, match="input_ids has 16 tokens in a row, .*max_position_embeddings=16; shorten"):
        model.generate(random_tokens(1, 16), max_new_tokens=4)
    from transformers import logging

    logging.enable_propagation()
    try:
        model.generate(random_tokens(1, 12), max_new_tokens=4)
        assert "max_position_embeddings" not in caplog.text
        model.generate(random_tokens(1, 12), max_new_tokens=5)
        assert "reach beyond max_position_embeddings=16" in caplog.text
    finally:
        logging.disable_propagation()


def test_ids_may_follow_a_single_cached_column():
    model, ids = MODELS["q3"], torch.tensor([PROMPTS[1]])
    first = model.generate(ids[:, :1], max_new_tokens=1, return_dict_in_generate=True)
    assert first[CACHE].get_seq_length() == 1
    arguments = {"max_new_tokens": 6, "pad_token_id": PAD}
    got = model.generate(ids[:, 1:], attention_mask=torch.ones_like(ids), **{CACHE: first[CACHE]}, **arguments)
    assert torch.equal(got[:, ids.shape[1] - 1 :], model.generate(ids, **arguments)[:, ids.shape[1] :])

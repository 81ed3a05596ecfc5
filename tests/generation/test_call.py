"""Prompts: their chunks, and those that cannot be decoded from."""

import pytest
import torch
from decoded import MODELS, forwards_seen, generate
from helpers import CHECKPOINTS, MASK, PAD, PROMPTS, left_padded, random_tokens
from torch.nn.functional import pad
from transformers import AutoConfig, GenerationConfig

from wedlm import WeDLMForCausalLM
from wedlm.generation.parameters import DEFAULTS, default_window_size
from wedlm.generation.transformers_internals import CACHE
from wedlm.generation.verified import Rule


@pytest.mark.parametrize(
    "input_ids, attention_mask, message",
    [
        ([[5, 6, MASK, 7]], None, "input_ids holds the MASK token, mask_token_id=159, .*take it out"),
        ([[5, 6, 7], [5, 6, 0]], [[1, 1, 1], [1, 1, 0]], "attention_mask .* has zeros behind .* pad on the left"),
        ([[5, 6, 7]], [[0, 1, 1, 1]], r"attention_mask has shape \(1, 4\), input_ids \(1, 3\); pass the mask that"),
        ([[5, 6, 7], [0, 0, 0]], [[1, 1, 1], [0, 0, 0]], "input_ids holds an empty prompt; give every row"),
        (torch.zeros(0, 3).long(), None, "input_ids holds no rows; pass at least one prompt"),
    ],
)
def test_prompts_that_cannot_be_are_refused(input_ids, attention_mask, message):
    input_ids = torch.as_tensor(input_ids)
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else torch.tensor(attention_mask)
    with pytest.raises(ValueError, match=message):
        MODELS["q3"].generate(input_ids, attention_mask=attention_mask, max_new_tokens=4)


def test_prompts_beyond_the_models_positions(caplog):
    model = WeDLMForCausalLM(AutoConfig.from_pretrained(CHECKPOINTS / "q3", max_position_embeddings=16)).eval()
    with pytest.raises(ValueError, match="input_ids has 16 tokens in a row, .*max_position_embeddings=16; shorten"):
        model.generate(random_tokens(1, 16), max_new_tokens=4)
    model.generate(random_tokens(1, 12), max_new_tokens=4)
    assert "max_position_embeddings" not in caplog.text
    model.generate(random_tokens(1, 12), max_new_tokens=5)
    assert "reach beyond max_position_embeddings=16" in caplog.text


def test_ids_may_follow_a_single_cached_column():
    model, ids = MODELS["q3"], torch.tensor([PROMPTS[1]])
    first = model.generate(ids[:, :1], max_new_tokens=1, return_dict_in_generate=True)
    assert first[CACHE].get_seq_length() == 1
    arguments = {"max_new_tokens": 6, "pad_token_id": PAD}
    got = model.generate(ids[:, 1:], attention_mask=torch.ones_like(ids), **{CACHE: first[CACHE]}, **arguments)
    assert torch.equal(got[:, ids.shape[1] - 1 :], model.generate(ids, **arguments)[:, ids.shape[1] :])


def test_the_window_is_as_large_as_suits_the_device(model):
    settings = {"max_new_tokens": 40, "entropy_threshold": 100.0, "eos_token_id": None}
    on_a_cpu, *others = (generate(model, PROMPTS, **settings, window_size=size) for size in (None, 8, 16))
    assert on_a_cpu == others[0] != others[1]
    assert [default_window_size(torch.device(device)) for device in ("cpu", "cuda", "mps")] == [8, 16, 16]


def test_a_ratio_of_one_is_no_margin():
    """Else a draft whose score equals the best would be accepted, and autoregressive decoding may write another."""
    margins = {}
    for ratio in (1.0, 0.5, 5e-324):
        config = GenerationConfig(**DEFAULTS | {"acceptance_ratio": ratio})
        config.num_looked_up = None  # as generate() sets it
        margins[ratio] = Rule.of(config, 4, 0.0, torch.device("cpu")).margin
    assert margins[1.0] is None
    assert margins[0.5].exp().item() == pytest.approx(2) and margins[5e-324].isfinite()


@pytest.mark.parametrize("more", [{}, {"prefill_chunk_size": 4}, {"decoding": "streaming"}], ids=str)
def test_columns_that_are_padding_in_every_row_take_no_queries(model, more):
    """They come from a tokenizer's padding="max_length" or pad_to_multiple_of."""
    arguments = {"decoding": "verified", "max_new_tokens": 8, "pad_token_id": PAD, **more}
    prompts = left_padded([[5, 6, 7], [8, 9]])
    padded = {name: pad(columns, (40, 0)) for name, columns in prompts.items()}
    seen = forwards_seen(model)
    narrow = model.generate(**prompts, **arguments)
    shapes = list(seen)
    assert torch.equal(model.generate(**padded, **arguments)[:, 40:], narrow) and seen == 2 * shapes

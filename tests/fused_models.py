"""Tiny models that can be fused, and what they predict."""

from functools import partial

import torch
from draft_models import drafted, tiny_model, with_adapter
from helpers import EOS, MASK, PAD, PROMPTS, left_padded, random_tokens
from stock_checkpoints import CLASSES
from torch import nn

from wedlm.generation.transformers_internals import CACHE

WITH_MASKS = random_tokens(2, 9)
WITH_MASKS[0, 3], WITH_MASKS[1, 5:] = MASK, MASK


def stock(family, **fields):
    """A tiny model of transformers' own class."""
    config_class, model_class = CLASSES[family]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 160, "pad_token_id": PAD, "eos_token_id": EOS}
    torch.manual_seed(0)
    model = model_class(config_class(**{**sizes, **fields})).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


SLIDING = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
MODELS = {flavour: partial(tiny_model, flavour) for flavour in ("qwen2 tied", "qwen3 tied", "llama")} | {
    "drafted": drafted,
    "PEFT": lambda: with_adapter(tiny_model()),
    "PEFT on some layers": lambda: with_adapter(tiny_model("qwen2"), target_modules=["k_proj", "up_proj", "o_proj"]),
    "stock llama with biases": partial(stock, "llama", attention_bias=True, mlp_bias=True),
    "stock mistral": partial(stock, "mistral", sliding_window=4),
    "stock qwen2 sliding": partial(stock, "qwen2", **SLIDING),
    "stock qwen3": partial(stock, "qwen3", head_dim=12, rms_norm_eps=0.3),
}


@torch.no_grad()
def logits(model, ids=WITH_MASKS, **inputs):
    return model(ids, **inputs).logits


def cached(model, cache):
    """The logits of left padded prompts, of a token behind them, and of five more."""
    prompts, more = left_padded(PROMPTS[:3]), random_tokens(3, 6, seed=1)
    mask, found = prompts["attention_mask"], []
    for ids in (prompts["input_ids"], more[:, :1], more[:, 1:]):
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1) if found else mask
        found.append(logits(model, ids, attention_mask=mask, **{CACHE: cache}))
    return torch.cat([found[0][prompts["attention_mask"].bool()], *(each.flatten(0, 1) for each in found[1:])])


def assert_close(got, wanted, most=1e-4):
    assert got.dtype == wanted.dtype and (got - wanted).abs().max() <= most * wanted.abs().max()

"""A blockwise decoder for causal and bidirectional windows, one token per forward, written to be read."""

from typing import Literal

import torch
from transformers import DynamicCache, PreTrainedModel

from wedlm.generation.transformers_internals import CACHE

Inside = Literal["causal", "bidirectional"]  # the attention inside a block or window


def sees_inside(window_size: int, inside: Inside) -> torch.Tensor:
    """`[queries, queries]`, True where a query of a window sees another one."""
    all_see = torch.ones(window_size, window_size, dtype=torch.bool)
    return all_see.tril() if inside == "causal" else all_see


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    inputs: dict[str, torch.Tensor],
    inside: Inside,
    window_size: int,
    distance_penalty: float,
    max_new_tokens: int,
) -> torch.Tensor:
    """
    Decodes a batch blockwise and returns `[batch, new tokens]`; what stands behind an end token means nothing.

    1. The clean text, at first the prompt and then each full window, goes through the model causally, and its keys and
       values are kept.
    2. Once for each slot of the window, its filled slots and then a MASK for each open slot go through the model, both
       in the order of their positions. They see all clean text, and each other as `inside` says. The slot with the
       lowest entropy is filled, plus `distance_penalty` for each slot from the first open one.

    All prompts fill their windows at the same time. A text that has ended goes on until the last one has.
    """
    clean, is_token = inputs["input_ids"], inputs["attention_mask"].bool()  # [batch, prompt], padded on the left
    lengths = is_token.sum(1, keepdim=True)  # [batch, 1]
    positions = (is_token.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    text = clean[:, :0]
    while True:
        read_clean_text(model, clean, positions, is_token, cache)
        num_slots = min(window_size, max_new_tokens - text.shape[1])
        has_ended = (text == model.config.eos_token_id).any(1)
        if num_slots == 0 or has_ended.all():
            return text
        start = lengths + text.shape[1]
        clean = fill_window(model, is_token, start, num_slots, inside, distance_penalty, cache)
        positions = start + torch.arange(num_slots)
        text = torch.cat([text, clean], dim=1)
        is_token = torch.cat([is_token, torch.ones_like(clean, dtype=torch.bool)], dim=1)


def forward(
    model: PreTrainedModel, tokens: torch.Tensor, positions: torch.Tensor, sees: torch.Tensor, cache: DynamicCache
) -> torch.Tensor:
    """The logits; `sees` is `[batch, queries, cached and new tokens]`."""
    return model(tokens, position_ids=positions, attention_mask=sees[:, None], **{CACHE: cache}, use_cache=True).logits


def read_clean_text(
    model: PreTrainedModel, tokens: torch.Tensor, positions: torch.Tensor, is_token: torch.Tensor, cache: DynamicCache
) -> None:
    """Appends the keys and values of `tokens` to the cache; `is_token` is `[batch, cached and new tokens]`."""
    num_cached = is_token.shape[1] - tokens.shape[1]
    causal = torch.ones(tokens.shape[1], is_token.shape[1], dtype=torch.bool).tril(num_cached)
    itself = causal.triu(num_cached)  # so that padding sees anything at all
    forward(model, tokens, positions, is_token[:, None] & causal | itself, cache)


def fill_window(
    model: PreTrainedModel,
    is_token: torch.Tensor,
    start: torch.Tensor,
    num_slots: int,
    inside: Inside,
    distance_penalty: float,
    cache: DynamicCache,
) -> torch.Tensor:
    """`[batch, num_slots]`, the tokens behind the cached text; `start` is `[batch, 1]`, the position of the first."""
    batch_size, mask = len(is_token), model.config.mask_token_id
    window = torch.full((batch_size, num_slots), mask)
    is_open = torch.ones_like(window, dtype=torch.bool)
    sees_text = is_token[:, None].expand(-1, num_slots, -1)
    sees_slots = sees_inside(num_slots, inside).expand(batch_size, -1, -1)
    sees = torch.cat([sees_text, sees_slots], dim=2)
    for num_filled in range(num_slots):
        order = is_open.long().argsort(dim=1, stable=True)  # [batch, queries], the slot of each query
        logits = forward(model, window.gather(1, order), start + order, sees, cache)[:, num_filled:]
        cache.crop(-num_slots)
        slots = order[:, num_filled:]  # the open ones, [batch, open]
        log_chances = logits.log_softmax(-1)
        entropy = -(log_chances.exp() * log_chances).sum(-1)
        query = (entropy + distance_penalty * (slots - slots[:, :1])).argmin(dim=1, keepdim=True)  # [batch, 1]
        logits[..., mask] = -torch.inf
        slot = slots.gather(1, query)
        window.scatter_(1, slot, logits.argmax(-1).gather(1, query))
        is_open.scatter_(1, slot, False)
    return window

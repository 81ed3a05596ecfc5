"""Scores of slots, and the tokens chosen from them."""

from collections.abc import Callable

import torch
from transformers import LogitsProcessorList

MOST_SCORES = 2**24  # that are in float32 at a time


def over_slots(read: Callable, logits: torch.Tensor, *more: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Applies `read` to the logits of every slot, a few slots at a time.

    `read` gets float32 `[n, vocabulary]`, so that there never is a float32 copy of all logits, and `[n]` of each other
    tensor. It reads all slots, also those that are not selected: the host would have to wait for the device to know
    which are.

    Args:
        read (`Callable`): Returns tensors `[n]`, the same number for each call.
        logits (`torch.Tensor` of shape `(batch, slots, vocabulary)`): The logits.
        more (`torch.Tensor` of shape `(batch, slots)`): What else is known of each slot.

    Returns:
        `tuple[torch.Tensor, ...]`: The tensors of all slots, `[batch, slots]` each.
    """
    flat = [each.flatten(0, 1) for each in (logits, *more)]
    size = max(1, MOST_SCORES // logits.shape[-1])
    # A compiler fuses the reading into one pass, without a copy.
    if torch.compiler.is_compiling() or len(flat[0]) <= size:
        columns = read(flat[0].float(), *flat[1:])
    else:
        parts = zip(*(each.split(size) for each in flat), strict=True)
        columns = map(torch.cat, zip(*(read(part.float(), *others) for part, *others in parts), strict=True))
    return tuple(column.view(logits.shape[:2]) for column in columns)


def choose_tokens(scores: torch.Tensor, noise: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Chooses a token from each `[..., vocabulary]` of processed scores; also returns whether any was possible.

    The likeliest is chosen; with Gumbel noise of the same shape it is drawn.
    """
    scores = scores.float()
    best, tokens = scores.max(-1)
    if noise is not None:
        tokens = (scores + noise).argmax(-1)
    return tokens, best > -torch.inf  # False where it is NaN


def draft_or_best(scores: torch.Tensor, drafts: torch.Tensor, margin: torch.Tensor) -> torch.Tensor:
    """Chooses the draft of each `[n, vocabulary]` of processed scores if it is accepted, else the likeliest token.

    A draft is accepted if it is possible and its score is at most `margin` below the best one; a negative draft
    stands for none.
    """
    best, tokens = scores.max(-1)
    score = scores.gather(-1, drafts.clamp(min=0)[:, None])[:, 0]
    is_accepted = (drafts >= 0) & (score > -torch.inf) & (score >= best - margin)
    return torch.where(is_accepted, drafts, tokens)


def processed(logits: torch.Tensor, processors: LogitsProcessorList) -> torch.Tensor:
    """Applies processors that read no text to `[n, vocabulary]` logits; the ids that they get are empty."""
    scores = logits.float()
    no_text = torch.empty(len(scores), 0, dtype=torch.long, device=scores.device)
    for processor in processors:  # one by one, since a compiler cannot follow the list's own call
        scores = processor(no_text, scores)
    return scores


def without_mask(logits: torch.Tensor, mask_token_id: int) -> torch.Tensor:
    """The logits with MASK made impossible."""
    mask = torch.full((1,), mask_token_id, device=logits.device)
    return logits.index_fill(-1, mask, -torch.inf)

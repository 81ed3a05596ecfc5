"""The loss of rows that each have a target and a weight, without the logits of all rows at once."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

NO_TARGET = -100
ROWS_PER_CHUNK = 1024  # 0.6 GB of float32 logits at 152k tokens


def row_loss(
    lm_head: nn.Module, hidden_states: torch.Tensor, targets: torch.Tensor, target_weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum over rows of weight times cross entropy, and for each row its cross entropy and whether it was right.

    `hidden_states` is `[batch, rows, hidden]`; `targets` and `target_weights` are `[batch, rows]`, NO_TARGET where
    there is none, and so are the last two results, detached, 0 and False there.

        loss = sum(target_weights * cross_entropy(lm_head(hidden_states), targets))
    """
    targets, target_weights = (x.to(hidden_states.device) for x in (targets, target_weights))
    has_target = targets != NO_TARGET
    row_losses = torch.zeros(targets.shape, device=targets.device)
    row_hits = torch.zeros_like(has_target)
    if not has_target.any():
        # No loss, but a graph through all weights: data parallelism waits for the gradient of each.
        return lm_head(hidden_states[:1, :1]).float().sum() * 0, row_losses, row_hits
    chunks = zip(
        hidden_states[has_target].split(ROWS_PER_CHUNK), targets[has_target].split(ROWS_PER_CHUNK), strict=True
    )
    # Logits are made again in the backward, so that those of one chunk are the most that there is.
    parts = [checkpoint(chunk_loss, lm_head, *chunk, use_reentrant=False) for chunk in chunks]
    losses, hits = (torch.cat(part) for part in zip(*parts, strict=True))  # [rows with a target]
    row_losses[has_target], row_hits[has_target] = losses.detach(), hits
    return (target_weights[has_target] * losses).sum(), row_losses, row_hits


def chunk_loss(lm_head: nn.Module, hidden_states: torch.Tensor, targets: torch.Tensor):
    logits = lm_head(hidden_states).float()  # [rows, vocabulary]
    return nn.functional.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets

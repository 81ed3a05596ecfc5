"""The loss of rows that each have a target and a weight, without the logits of all rows at once."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

NO_TARGET = -100
ROWS_PER_CHUNK = 1024  # 0.6 GB of float32 logits at 152k tokens


def target_loss(
    lm_head: nn.Module, hidden_states: torch.Tensor, targets: torch.Tensor, target_weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The sum over rows of weight times cross entropy, and for each row its cross entropy and whether it was right.

    `hidden_states` is `[batch, rows, hidden]`; `targets` and `target_weights` are `[batch, rows]`, NO_TARGET where
    there is none, and so are the last two results, detached, 0 and False there.

        loss = sum(target_weights * cross_entropy(lm_head(hidden_states), targets))
    """
    device = hidden_states.device
    all_targets, all_weights = targets.flatten().to(device), target_weights.flatten().to(device)
    rows = (all_targets != NO_TARGET).nonzero()[:, 0]  # those with a target; the one host sync
    target_losses = torch.zeros(all_targets.shape, device=device)
    target_hits = torch.zeros(all_targets.shape, dtype=torch.bool, device=device)
    if len(rows) == 0:
        # No loss, but a graph through all weights: data parallelism waits for the gradient of each.
        loss = lm_head(hidden_states[:1, :1]).float().sum() * 0
    else:
        # (ZeRO-3 gathers the head's weights anew for each call, and waits until all ranks call it.)
        rows_per_chunk = len(rows) if is_deepspeed_zero3_enabled() else ROWS_PER_CHUNK
        chunks = (x[rows].split(rows_per_chunk) for x in (hidden_states.flatten(0, 1), all_targets))
        # Logits are made again in the backward, so that those of one chunk are the most that there is.
        parts = [checkpoint(chunk_loss, lm_head, *chunk, use_reentrant=False) for chunk in zip(*chunks, strict=True)]
        losses, hits = (torch.cat(part) for part in zip(*parts, strict=True))
        loss = (all_weights[rows] * losses).sum()
        target_losses[rows], target_hits[rows] = losses.detach(), hits
    return loss, target_losses.view(targets.shape), target_hits.view(targets.shape)


def chunk_loss(lm_head: nn.Module, hidden_states: torch.Tensor, targets: torch.Tensor):
    logits = lm_head(hidden_states).float()  # [rows, vocabulary]
    return nn.functional.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets

"""The weighted loss of chosen queries, without holding the logits of all, and the weights over an optimizer step."""

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from wedlm.training.dual_stream import MEMORY, PREDICTION

NO_TARGET = -100
QUERIES_PER_CHUNK = 1024  # 0.6 GB of float32 logits at 152k tokens


def target_loss(
    lm_head: nn.Module, hidden_states: torch.Tensor, targets: torch.Tensor, target_weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes `sum(target_weights * cross_entropy(lm_head(hidden_states), targets))` over the queries with a target.

    The head sees only queries with a target, a chunk at a time. All tensors are `[batch, queries, ...]`, and a target
    is NO_TARGET for none.

    Returns the loss, and two detached tensors `[batch, queries]`: the unweighted cross entropy of each query, and
    whether its most likely token is its target. Queries without a target have 0 and False.
    """
    device = hidden_states.device
    all_targets, all_weights = targets.flatten().to(device), target_weights.flatten().to(device)
    chosen = (all_targets != NO_TARGET).nonzero()[:, 0]  # waits for the device, the only time
    target_losses = torch.zeros(all_targets.shape, device=device)
    target_hits = torch.zeros(all_targets.shape, dtype=torch.bool, device=device)
    if len(chosen) == 0:
        # One query without a target has loss 0, and its graph reaches all weights: data parallelism waits for each.
        chosen = chosen.new_zeros(1)
    # ZeRO-3 gathers the head's weights for each call, in the backward too, and waits until all ranks make it, so each
    # rank makes one.
    queries_per_chunk = len(chosen) if is_deepspeed_zero3_enabled() else QUERIES_PER_CHUNK
    chunks = (x[chosen].split(queries_per_chunk) for x in (hidden_states.flatten(0, 1), all_targets))
    head: Callable[[torch.Tensor], torch.Tensor] = lm_head
    parts = []
    for chunk in zip(*chunks, strict=True):
        # The backward recomputes the logits, so that no more than those of one chunk exist at a time.
        parts.append(checkpoint(chunk_loss, head, *chunk, use_reentrant=False))
        # FSDP's hooks gather the head's weights in the first call. Other calls run no hooks: the order in which FSDP
        # gathers weights depends on how often they run, and has to be the same on all ranks.
        head = lm_head.forward
    losses, hits = (torch.cat(part) for part in zip(*parts, strict=True))
    loss = (all_weights[chosen] * losses).sum()
    target_losses[chosen], target_hits[chosen] = losses.detach(), hits
    return loss, target_losses.view(targets.shape), target_hits.view(targets.shape)


def chunk_loss(
    head: Callable[[torch.Tensor], torch.Tensor], hidden_states: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden_states).float()  # [queries, vocabulary]
    losses = nn.functional.cross_entropy(logits, targets, ignore_index=NO_TARGET, reduction="none")
    return losses, logits.argmax(-1) == targets


# --- Over an optimizer step ---


def weight_sums(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Sums the `target_weights` of a batch by stream, `[memory, prediction]`."""
    weights, streams = batch["target_weights"], batch["stream_ids"]
    return torch.stack([(weights * (streams == stream)).sum() for stream in (MEMORY, PREDICTION)])


def scale_weights(
    batch: Mapping[str, torch.Tensor], sums: torch.Tensor, ar_loss_weight: float = 1.0
) -> dict[str, torch.Tensor]:
    """Returns the batch with `target_weights` scaled so that the losses of a step's batches add up to its loss.

    The loss of the step is (mlm + a * ar) / (1 + a). mlm is the weighted mean of the losses of all masked queries of
    the step, ar is that of all memory queries, and a is `ar_loss_weight`. A mean over no queries is 0. `sums` are the
    `weight_sums` of all batches of the step, added up.

    Example:

        sums = sum(weight_sums(batch) for batch in batches)
        total = sum(model(**scale_weights(batch, sums)).loss for batch in batches)
    """
    shares = sums.new_tensor([ar_loss_weight, 1.0]) / (1 + ar_loss_weight)  # [memory, prediction]
    factors = torch.where(sums > 0, shares / sums, 0.0).to(batch["target_weights"].device)
    return {**batch, "target_weights": batch["target_weights"] * factors[batch["stream_ids"]]}

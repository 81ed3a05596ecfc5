"""The weighted loss of chosen queries, without holding the logits of all, and the weights over an optimizer step."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from wedlm.generation.transformers_internals import has_weights_elsewhere
from wedlm.training.dual_stream import MEMORY, PREDICTION

NO_TARGET = -100
QUERIES_PER_CHUNK = 1024  # 0.3 GB of bfloat16 logits at 152k tokens, and their gradient
QUERIES_AT_A_TIME = 16  # on a CPU: their probabilities in float32 fit into its caches


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
    has_target = all_targets != NO_TARGET
    chosen = has_target.nonzero()[:, 0]  # waits for the device, the only time
    if len(chosen) == 0:
        # The loss of the first query, times 0: its graph reaches all weights, and data parallelism waits for each.
        chosen, all_weights = chosen.new_zeros(1), torch.zeros_like(all_weights)
        all_targets = torch.zeros_like(all_targets)
    columns = (hidden_states.flatten(0, 1)[chosen], all_targets[chosen], all_weights[chosen])
    is_autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if is_autocast else hidden_states.dtype
    if has_weights_elsewhere(lm_head) or dtype == torch.float16:
        loss, losses, hits = loss_by_autograd(lm_head, *columns)
    else:
        trained = [weight for weight in lm_head.parameters() if weight.requires_grad]
        loss, losses, hits = LossOfTargets.apply(*columns, lm_head, *trained)
    target_losses, target_hits = (
        torch.zeros_like(has_target, dtype=some.dtype).index_copy_(0, chosen, some) * has_target
        for some in (losses, hits)
    )
    return loss, target_losses.view(targets.shape), target_hits.view(targets.shape)


class LossOfTargets(torch.autograd.Function):
    """The weighted loss of queries that all have a target. It computes the gradients too, and so keeps no logits."""

    @staticmethod
    def forward(ctx, hidden_states, targets, weights, lm_head, *trained):
        is_training, *_ = needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[4:])
        results, of_queries, of_trained = [], [], [None] * len(trained)
        head: Callable[[torch.Tensor], torch.Tensor] = lm_head
        for queries, *columns in zip(
            *(x.split(QUERIES_PER_CHUNK) for x in (hidden_states, targets, weights)), strict=True
        ):
            queries = queries.detach().requires_grad_(is_training)
            with torch.set_grad_enabled(any(needed)):
                logits = head(queries)
            head = lm_head.forward  # hooks run once
            slopes = torch.empty_like(logits) if any(needed) else None  # [queries, vocabulary]
            at_a_time = QUERIES_AT_A_TIME if logits.device.type == "cpu" else len(logits)  # a GPU waits for launches
            parts = [x.split(at_a_time) for x in (logits.detach(), *columns)]
            slopes_of_parts = [None] * len(parts[0]) if slopes is None else slopes.split(at_a_time)
            results += [losses_and_slopes(*part) for part in zip(*parts, slopes_of_parts, strict=True)]
            if slopes is not None:
                wanted = [x for x, is_needed in zip((queries, *trained), needed, strict=True) if is_needed]
                found = iter(torch.autograd.grad(logits, wanted, slopes, allow_unused=True))
                if is_training:
                    of_queries.append(next(found))
                of_trained = [add(total, next(found)) for total in of_trained]
        losses, hits = map(torch.cat, zip(*results, strict=True))
        ctx.save_for_backward(torch.cat(of_queries) if is_training else None, *of_trained)
        ctx.mark_non_differentiable(losses, hits)
        return (weights * losses).sum(), losses, hits

    @staticmethod
    def backward(ctx, of_loss, *of_others):
        of_queries, *of_trained = (x if x is None else of_loss * x for x in ctx.saved_tensors)
        return of_queries, None, None, None, *of_trained


def add(total: torch.Tensor | None, gradient: torch.Tensor | None) -> torch.Tensor | None:
    return gradient if total is None else total.add_(gradient)


def losses_and_slopes(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, slopes: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the cross entropy and the hit of each query, and writes the slopes of its weighted loss by its logits.

    With the probabilities q, the slopes are q - 1 at the target, and q elsewhere.
    """
    largest, best = (x[:, None] for x in logits.max(-1))
    q = logits - largest.float()
    targets = targets[:, None]
    of_targets = q.gather(-1, targets)
    sums = q.exp_().sum(-1, keepdim=True)
    if slopes is not None:
        q.mul_(weights[:, None] / sums).scatter_add_(-1, targets, -weights[:, None].to(q.dtype))
        slopes.copy_(q)
    return (sums.log() - of_targets)[:, 0].float(), (best == targets)[:, 0]


def loss_by_autograd(
    lm_head: nn.Module, hidden_states: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same for a head whose weights FSDP and the like gather, and for float16, whose scaler has to come first."""
    # ZeRO-3 gathers the head's weights for each call, in the backward too, and waits until all ranks make it, so each
    # rank makes one.
    queries_per_chunk = len(targets) if is_deepspeed_zero3_enabled() else QUERIES_PER_CHUNK
    head: Callable[[torch.Tensor], torch.Tensor] = lm_head
    parts: list[Any] = []
    for chunk in zip(*(x.split(queries_per_chunk) for x in (hidden_states, targets)), strict=True):
        # The backward recomputes the logits, so that no more than those of one chunk exist at a time.
        parts.append(checkpoint(chunk_loss, head, *chunk, use_reentrant=False))
        # FSDP's hooks gather the head's weights in the first call. Other calls run no hooks: the order in which FSDP
        # gathers weights depends on how often they run, and has to be the same on all ranks.
        head = lm_head.forward
    losses, hits = (torch.cat(part) for part in zip(*parts, strict=True))
    return (weights * losses).sum(), losses.detach(), hits


def chunk_loss(
    head: Callable[[torch.Tensor], torch.Tensor], hidden_states: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden_states).float()  # [queries, vocabulary]
    return nn.functional.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets


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

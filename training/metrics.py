"""The two parts of the loss and the accuracy on masked tokens, kept as sums that add up over batches and processes."""

from collections.abc import Mapping

import torch

from wedlm.modeling_wedlm.modeling_wedlm import WeDLMTrainingOutput

GAMMA_BUCKETS = (0.25, 0.5, 0.75, 1.0)  # upper bounds, inclusive
NUM_SUMS = 4 + 2 * len(GAMMA_BUCKETS)


def row_sums(batch: Mapping[str, torch.Tensor], outputs: WeDLMTrainingOutput) -> torch.Tensor:
    """Sums the losses, weights and hits of each row of a batch.

    Args:
        batch (`Mapping[str, torch.Tensor]`): A batch of the collator.
        outputs (`WeDLMTrainingOutput`): The output of the model for the batch.

    Returns:
        `torch.Tensor`: `[batch, NUM_SUMS]`: the weighted loss and the weight of masked queries, the same two of memory
        queries, the hits among masked queries by bucket of gamma, and the number of masked queries by bucket.
    """
    weights, gammas = batch["target_weights"], batch["gammas"]
    is_masked = gammas > 0
    in_bucket = torch.bucketize(gammas, torch.tensor(GAMMA_BUCKETS, device=gammas.device))
    columns = []
    for part in (is_masked, ~is_masked):  # queries without a target have weight 0
        columns += [(weights * outputs.target_losses * part).sum(-1), (weights * part).sum(-1)]
    for values in (outputs.target_hits, torch.ones_like(is_masked)):
        columns += [(values & is_masked & (in_bucket == i)).sum(-1) for i in range(len(GAMMA_BUCKETS))]
    return torch.stack([column.float() for column in columns], dim=-1)


def combined_loss(sums: torch.Tensor, ar_loss_weight: float) -> float:
    """Returns (mlm + a * ar) / (1 + a) from sums `[NUM_SUMS]`, where a is `ar_loss_weight`."""
    mlm, mlm_weight, ar, ar_weight = sums[:4].tolist()
    mlm, ar = (mlm / mlm_weight if mlm_weight else 0.0), (ar / ar_weight if ar_weight else 0.0)
    return (mlm + ar_loss_weight * ar) / (1 + ar_loss_weight)


def logged_metrics(sums: torch.Tensor) -> dict[str, float]:
    """Returns the metrics that are logged, from sums `[NUM_SUMS]`. A loss or bucket without queries is left out."""
    mlm, mlm_weight, ar, ar_weight, *counts = sums.tolist()
    metrics = {}
    if mlm_weight:
        metrics["mlm_loss"] = mlm / mlm_weight
    if ar_weight:
        metrics["ar_loss"] = ar / ar_weight
    hits, masked = counts[: len(GAMMA_BUCKETS)], counts[len(GAMMA_BUCKETS) :]
    for bound, num_hits, num_masked in zip(GAMMA_BUCKETS, hits, masked, strict=True):
        if num_masked:
            metrics[f"masked_accuracy_to_{bound}"] = num_hits / num_masked
    return metrics

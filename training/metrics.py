"""The parts of the loss, and how often the masked tokens were right, as sums that can be added up over anything."""

import torch

GAMMA_BUCKETS = (0.25, 0.5, 0.75, 1.0)  # upper bounds, inclusive
NUM_SUMS = 4 + 2 * len(GAMMA_BUCKETS)


def row_sums(batch: dict[str, torch.Tensor], outputs) -> torch.Tensor:
    """[batch, NUM_SUMS]: weighted loss and weight of masked rows, then of memory rows; hits and rows per bucket."""
    weights, gammas = batch["target_weights"], batch["gammas"]
    is_masked = gammas > 0
    in_bucket = torch.bucketize(gammas, torch.tensor(GAMMA_BUCKETS, device=gammas.device))
    columns = []
    for part in (is_masked, ~is_masked):  # rows without a target have weight 0
        columns += [(weights * outputs.target_losses * part).sum(-1), (weights * part).sum(-1)]
    for values in (outputs.target_hits, torch.ones_like(is_masked)):
        columns += [(values & is_masked & (in_bucket == i)).sum(-1) for i in range(len(GAMMA_BUCKETS))]
    return torch.stack([column.float() for column in columns], dim=-1)


def combined_loss(sums: torch.Tensor, ar_loss_weight: float) -> float:
    mlm, mlm_weight, ar, ar_weight = sums[:4].tolist()
    mlm, ar = (mlm / mlm_weight if mlm_weight else 0.0), (ar / ar_weight if ar_weight else 0.0)
    return (mlm + ar_loss_weight * ar) / (1 + ar_loss_weight)


def report(sums: torch.Tensor) -> dict[str, float]:
    """What is logged; a part or bucket without rows is left out."""
    mlm, mlm_weight, ar, ar_weight, *counts = sums.tolist()
    logs = {}
    if mlm_weight:
        logs["mlm_loss"] = mlm / mlm_weight
    if ar_weight:
        logs["ar_loss"] = ar / ar_weight
    hits, rows = counts[: len(GAMMA_BUCKETS)], counts[len(GAMMA_BUCKETS) :]
    for bound, num_hits, num_rows in zip(GAMMA_BUCKETS, hits, rows, strict=True):
        if num_rows:
            logs[f"masked_accuracy_to_{bound}"] = num_hits / num_rows
    return logs

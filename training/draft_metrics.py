"""The metrics of a draft adapter's training, kept as sums that add up over batches and processes."""

from collections.abc import Mapping

import torch

from wedlm.modeling_wedlm.modeling_wedlm import WeDLMTrainingOutput
from wedlm.training.data_options import MAX_WINDOW

NUM_SUMS = 2 + 2 * (MAX_WINDOW - 1)


def row_sums(batch: Mapping[str, torch.Tensor], outputs: WeDLMTrainingOutput) -> torch.Tensor:
    """Sums the losses, weights and accepted drafts of each row of a batch.

    Args:
        batch (`Mapping[str, torch.Tensor]`): A batch of `DraftCollator`.
        outputs (`WeDLMTrainingOutput`): The output of the model for the batch.

    Returns:
        `torch.Tensor`: `[batch, NUM_SUMS]`: the weighted total variation and the weight, then for each number of
        drafts the groups whose drafts so far are all accepted, and then the groups that have so many drafts.
    """
    weights, places = batch["target_weights"], batch["draft_places"]
    columns = [(weights * outputs.target_losses).sum(-1), weights.sum(-1)]
    accepted, groups = [], []
    all_hit = places == 1
    for place in range(2, MAX_WINDOW + 1):
        is_here = places == place
        all_hit = is_here & outputs.target_hits & all_hit.roll(1, dims=-1)
        accepted.append(all_hit.sum(-1))
        groups.append(is_here.sum(-1))
    return torch.stack([column.float() for column in (*columns, *accepted, *groups)], dim=-1)


def combined_loss(sums: torch.Tensor, ar_loss_weight: float) -> float:
    """Returns the mean total variation from sums `[NUM_SUMS]`."""
    loss, weight = sums[:2].tolist()
    return loss / weight if weight else 0.0


def logged_metrics(sums: torch.Tensor) -> dict[str, float]:
    """Returns the metrics that are logged, from sums `[NUM_SUMS]`.

    `accepted_3` is the share of groups whose first three drafts are the tokens that the model itself would write
    (greedily). One token of a forward needs no draft, so `tokens_per_forward` is 1 plus all these shares, as far as
    groups reach.
    """
    metrics = {"total_variation": combined_loss(sums, 0.0)}
    accepted, groups = sums[2:].double().chunk(2)
    shares = [(hit / of).item() for hit, of in zip(accepted, groups, strict=True) if of > 0]
    metrics |= {f"accepted_{number}": share for number, share in enumerate(shares, start=1)}
    return metrics | {"tokens_per_forward": 1 + sum(shares)}

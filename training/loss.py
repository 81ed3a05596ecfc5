"""The total loss of an optimizer step, (mlm + a * ar) / (1 + a), as weights of the rows of its batches."""

from collections.abc import Mapping

import torch

from wedlm.modeling_wedlm.dual_stream import MEMORY, PREDICTION


def weight_sums(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """`[memory, prediction]`: the sums of the two streams' `target_weights`, to be added up over a whole step."""
    weights, streams = batch["target_weights"], batch["stream_ids"]
    return torch.stack([(weights * (streams == stream)).sum() for stream in (MEMORY, PREDICTION)])


def scale_weights(
    batch: Mapping[str, torch.Tensor], sums: torch.Tensor, ar_loss_weight: float = 1.0
) -> dict[str, torch.Tensor]:
    """The batch with its `target_weights` scaled: the losses of a step's batches then add up to its total.

    total = (mlm + a * ar) / (1 + a), with a the `ar_loss_weight`, mlm the weighted mean of the loss of all masked rows
    of the step, and ar that of all memory rows; a mean over no rows is 0. `sums` are the `weight_sums` of the step.

    Example:

        sums = sum(weight_sums(batch) for batch in batches)
        total = sum(model(**scale_weights(batch, sums)).loss for batch in batches)
    """
    if ar_loss_weight < 0:
        raise ValueError(f"ar_loss_weight={ar_loss_weight} is negative; pass 0 for no autoregressive loss, or more.")
    shares = sums.new_tensor([ar_loss_weight, 1.0]) / (1 + ar_loss_weight)  # [memory, prediction]
    factors = torch.where(sums > 0, shares / sums, 0.0).to(batch["target_weights"].device)
    return {**batch, "target_weights": batch["target_weights"] * factors[batch["stream_ids"]]}

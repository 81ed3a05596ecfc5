"""The loss of an optimizer step, (mlm + a * ar) / (1 + a), expressed as weights of the queries of its batches."""

from collections.abc import Mapping

import torch

from wedlm.training.dual_stream import MEMORY, PREDICTION


def weight_sums(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Sums the `target_weights` of each stream of a batch.

    Args:
        batch (`Mapping[str, torch.Tensor]`): A batch of the collator.

    Returns:
        `torch.Tensor`: `[memory, prediction]`. The sums of the batches of a step add up to those of the step.
    """
    weights, streams = batch["target_weights"], batch["stream_ids"]
    return torch.stack([(weights * (streams == stream)).sum() for stream in (MEMORY, PREDICTION)])


def scale_weights(
    batch: Mapping[str, torch.Tensor], sums: torch.Tensor, ar_loss_weight: float = 1.0
) -> dict[str, torch.Tensor]:
    """Scales the `target_weights` of a batch so that the losses of a step's batches add up to the loss of the step.

    The loss of the step is (mlm + a * ar) / (1 + a). mlm is the weighted mean of the losses of all masked queries of
    the step, ar is that of all memory queries, and a is `ar_loss_weight`. A mean over no queries is 0.

    Args:
        batch (`Mapping[str, torch.Tensor]`): A batch of the collator. It is not changed.
        sums (`torch.Tensor`): The `weight_sums` of all batches of the step, added up.
        ar_loss_weight (`float`, *optional*, defaults to 1.0): The weight of the autoregressive loss.

    Returns:
        `dict[str, torch.Tensor]`: The batch with scaled weights.

    Example:

        sums = sum(weight_sums(batch) for batch in batches)
        total = sum(model(**scale_weights(batch, sums)).loss for batch in batches)
    """
    if ar_loss_weight < 0:
        raise ValueError(f"ar_loss_weight={ar_loss_weight} is negative; pass 0 for no autoregressive loss, or more.")
    shares = sums.new_tensor([ar_loss_weight, 1.0]) / (1 + ar_loss_weight)  # [memory, prediction]
    factors = torch.where(sums > 0, shares / sums, 0.0).to(batch["target_weights"].device)
    return {**batch, "target_weights": batch["target_weights"] * factors[batch["stream_ids"]]}

"""How the losses of the two streams are weighted over all batches of an optimizer step.

The weight of each token, 1 or 1 / gamma of its block, is made in collator.py and applied in target_loss.py.
"""

from collections.abc import Mapping

import torch

from wedlm.training.dual_stream import MEMORY, PREDICTION


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

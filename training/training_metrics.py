"""The logged metrics of each objective, kept as sums that add up over batches and processes."""

from collections.abc import Mapping

import torch

from wedlm.modeling_wedlm.modeling_wedlm import WeDLMTrainingOutput
from wedlm.training.data_options import MAX_WINDOW

ONLY_FOR_METRICS = ("gammas", "draft_places")  # of a batch; the model does not take them
GAMMA_BUCKETS = (0.25, 0.5, 0.75, 1.0)  # upper bounds, inclusive


class DualStreamMetrics:
    """The two parts of the loss, and the accuracy on masked tokens by bucket of gamma."""

    @staticmethod
    def row_sums(batch: Mapping[str, torch.Tensor], outputs: WeDLMTrainingOutput) -> torch.Tensor:
        """Returns `[batch, sums]`: weighted loss and weight of masked queries, the same two of memory queries, the
        hits among masked queries by bucket of gamma, and the number of masked queries by bucket."""
        weights, gammas = batch["target_weights"], batch["gammas"]
        is_masked = gammas > 0
        in_bucket = torch.bucketize(gammas, torch.tensor(GAMMA_BUCKETS, device=gammas.device))
        columns = []
        for part in (is_masked, ~is_masked):  # queries without a target have weight 0
            columns += [(weights * outputs.target_losses * part).sum(-1), (weights * part).sum(-1)]
        for values in (outputs.target_hits, torch.ones_like(is_masked)):
            columns += [(values & is_masked & (in_bucket == i)).sum(-1) for i in range(len(GAMMA_BUCKETS))]
        return torch.stack([column.float() for column in columns], dim=-1)

    @staticmethod
    def logged(sums: torch.Tensor) -> dict[str, float]:
        """Returns the metrics of `[sums]`. A loss or bucket without queries is left out."""
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

    @staticmethod
    def loss(metrics: dict[str, float], ar_loss_weight: float) -> float:
        mlm, ar = (metrics.get(name, 0.0) for name in ("mlm_loss", "ar_loss"))
        return (mlm + ar_loss_weight * ar) / (1 + ar_loss_weight)


class DraftMetrics:
    """The total variation, and the shares of accepted drafts."""

    @staticmethod
    def row_sums(batch: Mapping[str, torch.Tensor], outputs: WeDLMTrainingOutput) -> torch.Tensor:
        """Returns `[batch, sums]`: the weighted total variation and the weight, then for each number of drafts the
        groups whose drafts so far are all accepted, and then the groups that have so many drafts."""
        weights, places = batch["target_weights"], batch["draft_places"]
        columns = [(weights * outputs.target_losses).sum(-1), weights.sum(-1)]
        # A MASK makes the draft of its place if it predicts the token behind it, else that of the place before.
        teachers = batch["teachers"].clamp(min=0)
        shifts = batch["position_ids"].gather(-1, teachers) == batch["position_ids"]
        drafts = torch.where(places > 0, places - 1 + shifts, 0)
        accepted, groups = [], []
        all_hit = places == 1
        for number in range(1, MAX_WINDOW):
            is_here = drafts == number
            is_first = is_here & (places == 1)
            all_hit = is_here & outputs.target_hits & (all_hit.roll(1, dims=-1) | is_first)
            accepted.append(all_hit.sum(-1))
            groups.append(is_here.sum(-1))
        return torch.stack([column.float() for column in (*columns, *accepted, *groups)], dim=-1)

    @staticmethod
    def logged(sums: torch.Tensor) -> dict[str, float]:
        """Returns the metrics of `[sums]`.

        `accepted_3` is the share of groups whose first three drafts are the tokens that the model itself would write
        (greedily). One token of a forward needs no draft, so `tokens_per_forward` is 1 plus all these shares, as far
        as groups reach.
        """
        loss, weight = sums[:2].tolist()
        accepted, groups = sums[2:].double().chunk(2)
        shares = [(hit / of).item() for hit, of in zip(accepted, groups, strict=True) if of > 0]
        metrics = {"total_variation": loss / weight if weight else 0.0}
        metrics |= {f"accepted_{number}": share for number, share in enumerate(shares, start=1)}
        return metrics | {"tokens_per_forward": 1 + sum(shares)}

    @staticmethod
    def loss(metrics: dict[str, float], ar_loss_weight: float) -> float:
        return metrics["total_variation"]  # a draft adapter does not act in the memory stream


def balancing_weight(metrics: dict[str, float]) -> float:
    """The weight of the autoregressive loss with which both parts of the loss are equal; 1 where one is missing."""
    mlm, ar = (metrics.get(name, 0.0) for name in ("mlm_loss", "ar_loss"))
    return mlm / ar if mlm and ar else 1.0


METRICS = {"dual_stream": DualStreamMetrics, "i-dlm": DualStreamMetrics, "draft": DraftMetrics}

"""The sums of a batch and the metrics made of them, against counting by hand."""

from types import SimpleNamespace

import pytest
import torch

from wedlm.training.training_metrics import DraftMetrics, DualStreamMetrics


def test_dual_stream_metrics_by_hand():
    batch = {"target_weights": torch.tensor([[1.0, 0, 2, 4]]), "gammas": torch.tensor([[0, 0, 0.25, 0.6]])}
    outputs = SimpleNamespace(
        target_losses=torch.tensor([[3.0, 0, 5, 7]]), target_hits=torch.tensor([[True, False, True, False]])
    )
    sums = DualStreamMetrics.row_sums(batch, outputs)
    assert sums.tolist() == [[38, 6, 3, 1, 1, 0, 0, 0, 1, 0, 1, 0]]
    metrics = DualStreamMetrics.logged(sums[0])
    accuracies = {"masked_accuracy_to_0.25": 1, "masked_accuracy_to_0.75": 0}
    assert metrics == {"mlm_loss": pytest.approx(38 / 6), "ar_loss": 3, **accuracies}
    assert DualStreamMetrics.loss(metrics, 0.5) == pytest.approx((38 / 6 + 0.5 * 3) / 1.5)
    sums[0, 2:4] = 0
    assert DualStreamMetrics.loss(DualStreamMetrics.logged(sums[0]), 1.0) == pytest.approx(38 / 12)


@pytest.mark.parametrize("mask_shift", [False, True])
def test_draft_metrics_by_hand(mask_shift):
    """Groups of three, two and four MASKs; the first MASK of a group is no draft, unless MASKs shift."""
    batch = {
        "draft_places": torch.tensor([[0, 0, 1, 2, 3, 1, 2], [0, 1, 2, 3, 4, 0, 0]]),
        "target_weights": torch.tensor([[0, 0, 0.3, 1, 1, 0.3, 1], [0, 0.3, 1, 1, 1, 0, 0]]),
        "position_ids": torch.tensor([[0, 1, 1, 1, 1, 1, 1]] * 2),
        "teachers": torch.tensor([[-1, *[int(mask_shift)] * 6]] * 2),
    }
    hits = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0, 0]]).bool()
    outputs = SimpleNamespace(target_hits=hits, target_losses=torch.full(hits.shape, 0.5))
    sums = DraftMetrics.row_sums(batch, outputs).sum(0)
    shares = {"accepted_1": 1, "accepted_2": 0.5, "accepted_3": 0}
    if mask_shift:  # of the groups (no, yes, yes), (yes, yes) and (yes, yes, no, yes)
        shares = {"accepted_1": 2 / 3, "accepted_2": 2 / 3, "accepted_3": 0, "accepted_4": 0}
    metrics = DraftMetrics.logged(sums)
    expected = {"total_variation": 0.5, **shares, "tokens_per_forward": 1 + sum(shares.values())}
    assert metrics == pytest.approx(expected)
    assert DraftMetrics.loss(metrics, 1.0) == pytest.approx(0.5)
    assert DraftMetrics.logged(torch.zeros_like(sums)) == {"total_variation": 0.0, "tokens_per_forward": 1.0}

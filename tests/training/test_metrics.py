"""The sums of a batch and the metrics made of them, by hand."""

from types import SimpleNamespace

import pytest
import torch

from wedlm.training.metrics import combined_loss, logged_metrics, row_sums


def test_sums_of_rows_by_hand():
    batch = {"target_weights": torch.tensor([[1.0, 0, 2, 4]]), "gammas": torch.tensor([[0, 0, 0.25, 0.6]])}
    outputs = SimpleNamespace(
        target_losses=torch.tensor([[3.0, 0, 5, 7]]), target_hits=torch.tensor([[True, False, True, False]])
    )
    sums = row_sums(batch, outputs)
    assert sums.tolist() == [[38, 6, 3, 1, 1, 0, 0, 0, 1, 0, 1, 0]]
    assert logged_metrics(sums[0]) == {
        "mlm_loss": pytest.approx(38 / 6),
        "ar_loss": 3,
        "masked_accuracy_to_0.25": 1,
        "masked_accuracy_to_0.75": 0,
    }
    assert combined_loss(sums[0], 0.5) == pytest.approx((38 / 6 + 0.5 * 3) / 1.5)
    sums[0, 2:4] = 0
    assert combined_loss(sums[0], 1.0) == pytest.approx(38 / 12)

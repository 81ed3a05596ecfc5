"""The sums of a batch and the metrics made of them, against counting by hand."""

from types import SimpleNamespace

import pytest
import torch
from helpers import MASK, random_tokens

from wedlm.training.draft_collator import DraftCollator
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


def test_draft_metrics_by_hand():
    texts = [random_tokens(1, length, seed=length)[0].tolist() for length in (25, 14, 40)]
    batch = DraftCollator(MASK, 4)(
        [
            {"input_ids": text, "labels": text, "sample_lengths": [len(text)], "sample_indices": [i]}
            for i, text in enumerate(texts)
        ]
    )
    generator, shape = torch.Generator().manual_seed(0), batch["input_ids"].shape
    hits, losses = (torch.rand(shape, generator=generator) for _ in range(2))
    outputs = SimpleNamespace(target_hits=hits < 0.7, target_losses=losses)
    accepted, groups, loss, weight = {}, {}, 0.0, 0.0
    for row in range(len(texts)):
        for query, place in enumerate(batch["draft_places"][row].tolist()):
            if place >= 1:
                loss += (batch["target_weights"][row, query] * outputs.target_losses[row, query]).item()
                weight += batch["target_weights"][row, query].item()
            if place >= 2:
                drafts = outputs.target_hits[row, query - place + 2 : query + 1]
                groups[place - 1] = groups.get(place - 1, 0) + 1
                accepted[place - 1] = accepted.get(place - 1, 0) + drafts.all().item()
    shares = {f"accepted_{n}": accepted[n] / groups[n] for n in groups}
    sums = DraftMetrics.row_sums(batch, outputs).sum(0)
    expected = {"total_variation": loss / weight, **shares, "tokens_per_forward": 1 + sum(shares.values())}
    assert DraftMetrics.logged(sums) == pytest.approx(expected) and len(shares) == 3
    assert DraftMetrics.loss(DraftMetrics.logged(sums), 1.0) == pytest.approx(loss / weight)
    assert DraftMetrics.logged(torch.zeros_like(sums)) == {"total_variation": 0.0, "tokens_per_forward": 1.0}

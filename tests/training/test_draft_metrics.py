"""The metrics of draft training, against counting by hand."""

from types import SimpleNamespace

import pytest
import torch
from helpers import MASK, random_tokens

from wedlm.training.draft_collator import DraftCollator
from wedlm.training.draft_metrics import NUM_SUMS, combined_loss, logged_metrics, row_sums


def batch_and_outputs(window_size=4):
    texts = [random_tokens(1, length, seed=length)[0].tolist() for length in (25, 14, 40)]
    sequences = [
        {"input_ids": text, "labels": text, "sample_lengths": [len(text)], "sample_indices": [i]}
        for i, text in enumerate(texts)
    ]
    batch = DraftCollator(MASK, window_size)(sequences)
    generator = torch.Generator().manual_seed(0)
    shape = batch["input_ids"].shape
    outputs = SimpleNamespace(
        target_hits=torch.rand(shape, generator=generator) < 0.7, target_losses=torch.rand(shape, generator=generator)
    )
    return batch, outputs


def by_hand(batch, outputs):
    accepted, groups, loss, weight = {}, {}, 0.0, 0.0
    for row in range(len(batch["input_ids"])):
        for query, place in enumerate(batch["draft_places"][row].tolist()):
            if place >= 1:
                loss += (batch["target_weights"][row, query] * outputs.target_losses[row, query]).item()
                weight += batch["target_weights"][row, query].item()
            if place >= 2:
                hits = outputs.target_hits[row, query - place + 2 : query + 1]
                groups[place - 1] = groups.get(place - 1, 0) + 1
                accepted[place - 1] = accepted.get(place - 1, 0) + hits.all().item()
    shares = {f"accepted_{n}": accepted[n] / groups[n] for n in groups}
    return {"total_variation": loss / weight, **shares, "tokens_per_forward": 1 + sum(shares.values())}


def test_metrics_are_those_counted_by_hand():
    batch, outputs = batch_and_outputs()
    sums = row_sums(batch, outputs)
    assert sums.shape == (3, NUM_SUMS)
    expected = by_hand(batch, outputs)
    assert logged_metrics(sums.sum(0)) == pytest.approx(expected)
    assert set(expected) == {"total_variation", "accepted_1", "accepted_2", "accepted_3", "tokens_per_forward"}
    assert combined_loss(sums.sum(0), 1.0) == pytest.approx(expected["total_variation"])


def test_sums_of_rows_and_batches_add_up():
    batch, outputs = batch_and_outputs()
    parts = [
        row_sums(
            {name: values[row : row + 1] for name, values in batch.items()},
            SimpleNamespace(**{name: values[row : row + 1] for name, values in vars(outputs).items()}),
        )
        for row in range(3)
    ]
    torch.testing.assert_close(torch.cat(parts), row_sums(batch, outputs))


def test_a_step_without_groups():
    assert logged_metrics(torch.zeros(NUM_SUMS)) == {"total_variation": 0.0, "tokens_per_forward": 1.0}

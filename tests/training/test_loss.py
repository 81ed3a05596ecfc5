"""The weights of a step against the formula of its loss."""

import copy

import pytest
import torch
from helpers import MASK, random_tokens

from wedlm import DualStreamCollator
from wedlm.training.loss import scale_weights, weight_sums


def collated(layout, prompt_length=2, first_index=0, **kwargs):
    sequences, index = [], first_index
    for lengths in layout:
        samples = [random_tokens(1, length, seed=index + i)[0].tolist() for i, length in enumerate(lengths)]
        sequences.append(
            {
                "input_ids": sum(samples, []),
                "labels": sum(([-100] * prompt_length + sample[prompt_length:] for sample in samples), []),
                "sample_lengths": lengths,
                "sample_indices": list(range(index, index + len(lengths))),
            }
        )
        index += len(lengths)
    return DualStreamCollator(mask_token_id=MASK, block_size=4, **kwargs)(sequences)


STEP = [[[20, 5], [9]], [[3], [31]], [[7, 7, 7]]]


def step(**kwargs):
    return [collated(layout, first_index=10 * i, **kwargs) for i, layout in enumerate(STEP)]


@pytest.mark.few(4)
@pytest.mark.parametrize("loss_weighting", ["weighted", "uniform"])
@pytest.mark.parametrize("ar_loss_weight", [0.0, 0.5, 1.0])
def test_losses_of_a_step_add_up_to_its_total(model, ar_loss_weight, loss_weighting):
    batches = step(loss_weighting=loss_weighting)
    sums = sum(weight_sums(batch) for batch in batches)
    total = sum(model(**scale_weights(batch, sums, ar_loss_weight)).loss for batch in batches)
    means = []
    for stream in (0, 1):
        weighted, weights = 0.0, 0.0
        for batch in batches:
            losses = model(**batch).target_losses
            for i, j in ((batch["stream_ids"] == stream) & (batch["targets"] != -100)).nonzero().tolist():
                gamma = batch["gammas"][i, j].item()
                weight = 1 / gamma if stream == 1 and loss_weighting == "weighted" else 1.0
                weighted, weights = weighted + weight * losses[i, j].item(), weights + weight
        means.append(weighted / weights)
    ar, mlm = means
    assert total.item() == pytest.approx((mlm + ar_loss_weight * ar) / (1 + ar_loss_weight), abs=1e-4)


def test_a_part_without_targets_counts_0(model):
    batch = collated([[12]])
    no_memory, no_prediction = copy.deepcopy(batch), copy.deepcopy(batch)
    for part, stream in ((no_memory, 0), (no_prediction, 1)):
        part["targets"][part["stream_ids"] == stream] = -100
        part["target_weights"][part["stream_ids"] == stream] = 0
    losses = [model(**scale_weights(part, weight_sums(part), 0.5)).loss for part in (batch, no_memory, no_prediction)]
    assert all(loss > 0 for loss in losses)
    assert losses[0].item() == pytest.approx((losses[1] + losses[2]).item(), abs=1e-4)
    nothing = {**batch, "targets": torch.full_like(batch["targets"], -100)}
    nothing["target_weights"] = torch.zeros_like(batch["target_weights"])
    scaled = scale_weights(nothing, weight_sums(nothing))
    assert not scaled["target_weights"].any()  # 0, and not 0 / 0
    assert model(**scaled).loss.item() == 0


def test_a_part_of_one_query_and_the_two_parts_by_default():
    batch = {"target_weights": torch.tensor([[1.0, 1.0, 2.0]]), "stream_ids": torch.tensor([[0, 1, 1]])}
    scaled = scale_weights(batch, weight_sums(batch))["target_weights"]
    torch.testing.assert_close(scaled, torch.tensor([[1 / 2, 1 / 6, 1 / 3]]))


def test_scaling_leaves_the_batch_alone():
    batch = collated([[12]])
    before = copy.deepcopy(batch)
    scaled = scale_weights(batch, weight_sums(batch))
    assert all(torch.equal(batch[name], before[name]) for name in batch)
    assert scaled["target_weights"].sum().item() == pytest.approx(1)


def test_a_negative_weight_is_refused():
    batch = collated([[12]])
    with pytest.raises(ValueError, match="ar_loss_weight=-1 is negative; pass 0"):
        scale_weights(batch, weight_sums(batch), -1)

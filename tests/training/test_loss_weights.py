"""The weights of a step against the formula of its loss."""

import pytest
from helpers import MASK, random_tokens

from wedlm import DualStreamCollator
from wedlm.training.loss_weights import scale_weights, weight_sums


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


@pytest.mark.parametrize("loss_weighting, ar_loss_weight", [("weighted", 0.5), ("uniform", 1.0), ("weighted", 0.0)])
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

import numpy as np
import pytest
import torch
from helpers import GOLDEN, MASK, load

from wedlm import DualStreamCollator
from wedlm.training.loss import scale_weights, weight_sums
from wedlm.training.masking import Draws

TRAIN = {name[3:]: values for name, values in np.load(GOLDEN / "train.npz").items()}
LENGTHS = np.diff(TRAIN["base_cum_seqlens"])
FORMS = ["sdpa", "eager", "dual_stream"]  # those with a backward on a CPU


class RecordedDraws(DualStreamCollator):
    """The draws of train.npz: gammas of 5 blocks and then 3, masks of 37 tokens and then 20."""

    def draw(self, index, maskable):
        gammas, masked = [(slice(0, 5), slice(0, 37)), (slice(5, 8), slice(37, 57))][index]
        return Draws(TRAIN["block_mask_ratios"][gammas], TRAIN["mask_indices"][masked])


def recorded_batch(**kwargs):
    collator = RecordedDraws(mask_token_id=MASK, block_size=int(TRAIN["block_size"]), **kwargs)
    columns = {"input_ids": TRAIN["base_ids"], "labels": TRAIN["labels"]}
    return collator([{**columns, "sample_lengths": LENGTHS, "sample_indices": [0, 1]}])


def total(model, batch, ar_loss_weight=1.0):
    return model(**scale_weights(batch, weight_sums(batch), ar_loss_weight)).loss


@pytest.mark.parametrize("attention", FORMS)
def test_recorded_step(checkpoint, attention):
    model = load(checkpoint, attn_implementation=attention)
    batch = recorded_batch()
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "sample_ids", "stream_ids", "block_ids")}
    recorded = {name.partition(".")[2]: values for name, values in TRAIN.items() if name.startswith(checkpoint.name)}
    np.testing.assert_allclose(model(**inputs).logits[0].detach(), recorded["logits"], atol=1e-4)
    for ar_loss_weight, name in ((1.0, "total"), (0.5, "total_arw0.5"), (0.0, "mlm_weighted")):
        assert total(model, batch, ar_loss_weight).item() == pytest.approx(recorded[name], abs=1e-4)
    assert total(model, recorded_batch(loss_weighting="uniform"), 0.0).item() == pytest.approx(
        recorded["mlm_uniform"], abs=1e-4
    )
    total(model, batch).backward()
    names = [name for name in recorded if name.startswith("grad_norm.")]
    assert len(names) == 3
    for name in names:
        norm = model.get_parameter(name.removeprefix("grad_norm.")).grad.norm().item()
        assert norm == pytest.approx(recorded[name], abs=1e-3)
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
    assert norm.item() == pytest.approx(recorded["grad_norm_total"], abs=1e-3)

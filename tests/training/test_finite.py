"""A loss or weight that is not finite stops training, and is never saved."""

import re

import pytest
import torch
from helpers import CHECKPOINTS, load
from safetensors.torch import load_file
from training_runs import run
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from wedlm import DualStreamCollator, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.training.errors import TrainingError
from wedlm.training.finite import check_loss, is_finite

SEQUENCES = [
    {"input_ids": tokens, "labels": tokens, "sample_lengths": [4], "sample_indices": [i]}
    for i, tokens in enumerate([[11, 12, 13, 14], [21, 22, 23, 24]])
]


@pytest.mark.parametrize("part", ["masked", "next"])
def test_the_sentence_names_step_part_and_row(tmp_path, part):
    model = load(CHECKPOINTS / "q3")
    batch = DualStreamCollator(mask_token_id=159, block_size=2)(SEQUENCES)
    outputs = model(**batch)
    args = WeDLMTrainingArguments(str(tmp_path), use_cpu=True)
    check_loss(batch, outputs, 7, args, None)
    is_part = (batch["gammas"] > 0) == (part == "masked")
    outputs.target_losses[1] = torch.where(is_part & (batch["targets"] >= 0), torch.nan, outputs.target_losses)[1]
    outputs.loss = outputs.target_losses.sum()
    message = rf"a batch of step 7 is nan, from the {part} tokens in row 1, .* tokens \[21, 22, 23, 24.* start anew\.$"
    with pytest.raises(TrainingError, match=message):
        check_loss(batch, outputs, 7, args, None)


def test_the_sentence_shows_the_beginning_of_a_sample(tmp_path):
    tokens = list(range(20, 60))
    long = {"input_ids": tokens, "labels": tokens, "sample_lengths": [40], "sample_indices": [0]}
    batch = DualStreamCollator(mask_token_id=159, block_size=2)([long])
    outputs = load(CHECKPOINTS / "q3")(**batch)
    outputs.target_losses[0, 0] = outputs.loss = torch.tensor(torch.nan)
    with pytest.raises(TrainingError, match=rf"the tokens {re.escape(str(tokens[:24]))}; lower"):
        check_loss(batch, outputs, 1, WeDLMTrainingArguments(str(tmp_path), use_cpu=True), None)


def test_a_run_stops_at_its_first_step(place, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(place / "model")
    model.lm_head.weight.data[5, 0] = torch.nan
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(place / "model").save_pretrained(tmp_path / "broken")
    with pytest.raises(
        TrainingError, match="of step 1 is nan, from the masked and next tokens in all .*'<|im_start|>"
    ):
        run(place, tmp_path / "out", model=tmp_path / "broken")
    assert not list((tmp_path / "out").glob("**/*.safetensors"))


class BreakWeights(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step + 1 == self.step:
            model.lm_head.weight.data[0, 0] = torch.inf


@pytest.mark.parametrize("step", [2, 3])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, step):
    """Neither in a checkpoint, nor after the last step."""
    args = WeDLMTrainingArguments(
        str(tmp_path), max_steps=3, save_steps=1 if step == 2 else 2, report_to="none", disable_tqdm=True, use_cpu=True
    )
    model = load(CHECKPOINTS / "q3")
    trainer = WeDLMTrainer(model, args, train_dataset=SEQUENCES, callbacks=[BreakWeights(step)])
    with pytest.raises(
        TrainingError, match=rf"not finite after step {step}; .* resume from .*checkpoint-{step - 1}, "
    ):
        trainer.train()
    (saved,) = tmp_path.glob("checkpoint-*")
    assert all(weight.isfinite().all() for weight in load_file(saved / "model.safetensors").values())


@pytest.mark.parametrize("value", [1.0, torch.nan])
def test_a_part_of_a_weight_under_zero3(value):
    """DeepSpeed leaves the weight empty, and keeps the part of the rank beside it."""
    weight = torch.nn.Parameter(torch.empty(0))
    weight.ds_tensor = torch.tensor([0.0, value])
    assert is_finite(weight) == (value == 1.0)

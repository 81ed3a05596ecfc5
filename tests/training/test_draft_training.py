"""Training of a draft adapter: a step however it is cut, a run that learns, its checkpoints, and what is refused."""

import pytest
import torch
from draft_models import tiny_model
from helpers import MASK, random_tokens
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from trainer_runs import adapted, arguments, assert_same, samples
from trainer_runs import trained as trained_in_any_way

from wedlm import WeDLMTrainer
from wedlm.checkpoints.load import attach_adapter
from wedlm.training.draft_collator import DraftCollator


def trained(folder, **fields):
    return trained_in_any_way(folder, objective="draft", **fields)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("whole"))


def test_a_step_is_the_same_however_it_is_cut(whole, tmp_path):
    cut = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3, "gradient_checkpointing": True}
    assert_same(whole, trained(tmp_path, **cut))


@pytest.mark.parametrize("mask_shift", [False, True])
def test_the_loss_of_a_step_is_the_weighted_mean(whole, tmp_path, mask_shift):
    """Against one forward for each MASK on the very text that verified decoding sees."""
    if mask_shift:
        whole = trained(tmp_path, model=adapted(mask_shift=True))
    model = adapted(mask_shift=mask_shift).eval()
    collator = DraftCollator(MASK, 4, seed=42, mask_shift=mask_shift)
    losses, weights = 0.0, 0.0
    for sample in samples():
        batch = collator([sample])
        text = torch.tensor([sample["input_ids"]])
        with torch.no_grad(), model.disable_adapter():
            teacher = model(input_ids=text).logits[0].double()
        for query in (batch["draft_places"][0] > 0).nonzero().flatten().tolist():
            place, position = batch["draft_places"][0, query].item(), batch["position_ids"][0, query].item()
            ids = torch.cat([text[:, : position - place + 1], torch.full((1, place), MASK)], dim=1)
            with torch.no_grad():
                scores = model(input_ids=ids).logits[0, -1].double()
            scores[MASK] = teacher[:, MASK] = -torch.inf
            p, q = teacher[position - (not mask_shift)].softmax(-1), scores.softmax(-1)
            weight = batch["target_weights"][0, query].item()
            losses += weight * ((p - q).abs().sum() / 2 - 0.1 * q[p.argmax()].log()).item()
            weights += weight
    assert whole[1][0]["loss"] == pytest.approx(losses / weights, rel=1e-4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that sees the same texts again and again, with a checkpoint in its middle."""
    folder = tmp_path_factory.mktemp("run")
    fields = {"max_steps": 30, "optim": "adamw_torch", "learning_rate": 0.01, "save_strategy": "steps"}
    return folder, fields, trained(folder, **fields, save_steps=15)


def test_training_lowers_the_loss_and_raises_the_drafts_that_are_accepted(run):
    _, log, trainer = run[2]
    assert log[-1]["loss"] < 0.7 * log[0]["loss"]
    assert log[-1]["tokens_per_forward"] > log[0]["tokens_per_forward"] + 0.2
    assert {"total_variation", "accepted_1", "accepted_2", "accepted_3"} <= log[-1].keys()
    measured = trainer.evaluate(samples((20, 25)))
    assert measured["eval_loss"] == pytest.approx(measured["eval_total_variation"])
    assert measured["eval_tokens_per_forward"] >= 1


def test_a_checkpoint_is_an_adapter_that_both_forms_load(run):
    folder = run[0] / "checkpoint-30"
    assert not list(folder.glob("model*.safetensors"))
    assert all("lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
    ids = torch.cat([random_tokens(1, 8), torch.full((1, 3), MASK)], dim=1)
    native = tiny_model()
    attach_adapter(native, folder)
    with torch.no_grad():
        expected = run[2][2].model.eval()(input_ids=ids).logits
        for model in (native, PeftModel.from_pretrained(tiny_model(), folder)):
            torch.testing.assert_close(model(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)


# --- Refusals ---


@pytest.mark.parametrize("model", ["whole", "LoRA", "draft"])
def test_an_objective_that_does_not_fit_the_model(model, tmp_path):
    models = {
        "whole": tiny_model,
        "LoRA": lambda: get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")),
        "draft": adapted,
    }
    fields = {"objective": "dual_stream" if model == "draft" else "draft"}
    with pytest.raises(ValueError, match="objective='.*' does not fit the model, which has .* draft adapter; train"):
        WeDLMTrainer(models[model](), arguments(tmp_path, **fields), train_dataset=samples())

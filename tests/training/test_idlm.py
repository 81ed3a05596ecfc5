"""I-DLM's objective for whole models: its loss beside a slow reference, runs, what they save, and what is refused."""

import json
import math
import re

import pytest
import torch
from draft_models import tiny_model, with_random_drafts
from helpers import MASK, random_tokens
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from trainer_runs import arguments, assert_same, samples, trained
from training_runs import run
from transformers import AutoModelForCausalLM

from wedlm import WeDLMConfig, WeDLMTrainer, convert_to_autoregressive
from wedlm.generation.model_kind import masks_shift
from wedlm.training.draft_collator import IDLMCollator
from wedlm.training.merge import merge_adapter
from wedlm.training.target_loss import scale_weights, weight_sums

WINDOW = 3


def sample_of(*pieces, index=0):
    """A sample of random tokens from pieces (length, has_loss)."""
    has_loss = [loss for length, loss in pieces for _ in range(length)]
    text = random_tokens(1, len(has_loss), seed=index)[0].tolist()
    labels = [token if loss else -100 for token, loss in zip(text, has_loss, strict=True)]
    return {"input_ids": text, "labels": labels, "sample_lengths": [len(text)], "sample_indices": [index]}


CHAT = sample_of((4, False), (7, True), (2, False), (1, True), (5, False), (6, True))  # the second answer has no MASK
TEXT = sample_of((8, True), index=1)
SHORT = sample_of((3, False), (1, True), index=2)
SAMPLES = [CHAT, SHORT, TEXT, sample_of((5, False), (13, True), index=3)]
PACKED = {name: [value for sample in SAMPLES for value in sample[name]] for name in CHAT}


def reference(model, rows, alpha):
    """The loss in loops: a forward for the clean text, and one for each block on [clean text before it | MASKs]."""
    of_masks, of_tokens = [], []
    for row in rows:
        text, labels = torch.tensor([row["input_ids"]]), row["labels"]
        clean = model(input_ids=text).logits[0]
        for position in range(len(labels) - 1):
            if labels[position + 1] != -100:
                of_tokens.append(cross_entropy(clean[position], text[0, position + 1]))
        position = 1
        while position < len(labels):
            if labels[position] == -100:
                position += 1
                continue
            place = 0
            while place < WINDOW and position + place + 1 < len(labels) and labels[position + place + 1] != -100:
                place += 1
            # The MASKs from `position` on predict the tokens from `position + 1` on.
            if place:
                masks = torch.full((1, place), MASK)
                logits = model(input_ids=torch.cat([text[:, :position], masks], dim=1)).logits[0]
                for i in range(place):
                    of_masks.append(cross_entropy(logits[position + i], text[0, position + i + 1]))
                position += place
            else:
                position += 1
    masked, clean = torch.stack(of_masks).mean(), torch.stack(of_tokens).mean()
    alpha = (masked / clean).item() if alpha == "balanced" else alpha
    return (masked + alpha * clean) / (1 + alpha)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("attention", ["dual_stream", "sdpa"])
@pytest.mark.parametrize("rows", [SAMPLES, [PACKED]], ids=["samples", "packed"])
def test_the_loss_and_its_gradients_are_those_of_the_reference(attention, rows):
    model = tiny_model(mask_shift=True)
    expected = reference(model, SAMPLES, 0.2)
    of_reference = gradients(model, expected)
    model.set_attn_implementation(attention)
    batch = IDLMCollator(MASK, WINDOW)(rows)
    loss = model(**scale_weights(batch, weight_sums(batch), 0.2)).loss
    torch.testing.assert_close(loss.squeeze(), expected, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients(model, loss).items():
        torch.testing.assert_close(gradient, of_reference[name], rtol=1e-3, atol=1e-5)


# --- Runs ---


def step(folder, **fields):
    fields = {"draft_window": WINDOW, "max_steps": 1, "ar_loss_weight": 0.2, **fields}
    return trained(folder, tiny_model(mask_shift=True), objective="i-dlm", **fields)


@pytest.mark.parametrize("alpha", [0.2, "balanced"])
def test_a_step_is_the_same_however_it_is_cut(tmp_path, alpha):
    whole = step(tmp_path / "whole", ar_loss_weight=alpha)
    (entry,) = whole[1]
    expected = reference(tiny_model(), list(samples()), alpha).item()
    assert entry["loss"] == pytest.approx(expected, rel=1e-4)
    ratio = entry["mlm_loss"] / entry["ar_loss"] if alpha == "balanced" else alpha
    assert entry["loss"] == pytest.approx((entry["mlm_loss"] + ratio * entry["ar_loss"]) / (1 + ratio), rel=1e-4)
    cut = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3, "gradient_checkpointing": True}
    assert_same(whole, step(tmp_path / "cut", ar_loss_weight=alpha, **cut))
    assert_same(whole, step(tmp_path / "packed", ar_loss_weight=alpha, room=64))
    evaluated = whole[2].evaluate(samples((20, 25)))
    expected = reference(whole[2].model.eval(), list(samples((20, 25))), alpha).item()
    assert evaluated["eval_loss"] == pytest.approx(expected, rel=1e-4)


def test_a_run_learns_and_what_it_saves_decodes_verified(tmp_path):
    """From a model that streams, whose MASKs predict the tokens of their own places."""
    fields = {"max_steps": 30, "optim": "adamw_torch", "learning_rate": 0.01}
    _, log, trainer = trained(tmp_path, tiny_model(), objective="i-dlm", **fields)
    assert log[-1]["mlm_loss"] < 0.7 * log[0]["mlm_loss"] and log[-1]["ar_loss"] < 0.7 * log[0]["ar_loss"]
    assert log[-1]["masked_accuracy_to_1.0"] > log[0]["masked_accuracy_to_1.0"] + 0.1
    assert trainer.args.ar_loss_weight == 0.2
    trainer.save_model(tmp_path / "saved")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert (model.config.mask_shift, model.config.mask_trained) == (True, True)
    texts = [sample["input_ids"][:12] for sample in samples() if len(sample["input_ids"]) > 20]
    output = model.generate(torch.tensor(texts), max_new_tokens=20, return_dict_in_generate=True, query_cost=0)
    expected = model.generate(torch.tensor(texts), max_new_tokens=20, decoding="autoregressive")
    assert torch.equal(output.sequences, expected) and output.tokens_per_forward.max() > 1.3
    for decoding in ("streaming", "blockwise"):
        with pytest.raises(ValueError, match=f"decoding='{decoding}' fills MASK tokens, .*; pass decoding="):
            model.generate(torch.tensor(texts), max_new_tokens=20, decoding=decoding)


def test_the_dual_stream_objective_teaches_masks_their_own_places_again(tmp_path):
    """Those of a draft adapter in the model, too."""
    model = with_random_drafts(tiny_model(mask_shift=True))
    model.config.drafts["mask_shift"] = True
    assert masks_shift(model)
    trained(tmp_path, model, max_steps=1)
    assert not masks_shift(model)


def test_a_balanced_run_with_dropout_resumes_exactly(tmp_path):
    """The forward that finds the weight draws no random numbers."""

    def train(name, resume=None):
        lora = LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.5, task_type="CAUSAL_LM")
        fields = {"max_steps": 3, "per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 2}
        fields |= {"objective": "i-dlm", "ar_loss_weight": "balanced", "resume": resume}
        torch.manual_seed(0)
        return trained(tmp_path / name, get_peft_model(tiny_model(mask_shift=True), lora), **fields)

    weights, log, _ = train("whole")
    resumed, again, _ = train("again", str(tmp_path / "whole" / "checkpoint-2"))
    assert all(torch.equal(resumed[name], weight) for name, weight in weights.items())
    assert again[-1]["loss"] == log[-1]["loss"]


def test_a_lora_on_a_stock_checkpoint_says_what_its_masks_predict(place, tmp_path):
    """Also where the checkpoint was a WeDLM whose MASKs predicted something else."""
    stock = place / "qwen"
    for objective in ("i-dlm", "dual_stream"):
        out = run(place, tmp_path / objective, "lora", model=stock, objective=objective, lora_r=4)
        merge_adapter(str(out), tmp_path / f"{objective} merged")
        config = WeDLMConfig.from_pretrained(tmp_path / f"{objective} merged")
        assert (config.mask_shift, config.mask_trained) == (objective == "i-dlm", True)
        stock = convert_to_autoregressive(tmp_path / f"{objective} merged", tmp_path / f"{objective} stock").folder
    assert json.loads((tmp_path / "i-dlm stock" / "config.json").read_text())["wedlm"]["mask_shift"]


@pytest.mark.parametrize(("shift", "objective"), [(False, "i-dlm"), (True, "dual_stream")])
def test_a_lora_on_a_base_whose_masks_predict_something_else(tmp_path, shift, objective):
    model = get_peft_model(tiny_model(mask_shift=shift), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    sentence = f"objective='{objective}' does not fit mask_shift={shift} .* set mask_shift to {str(not shift).lower()}"
    with pytest.raises(ValueError, match=sentence):
        WeDLMTrainer(model, arguments(tmp_path, objective=objective), train_dataset=samples())


@pytest.mark.parametrize("weight", [-0.1, math.inf, math.nan, "even", [1]])
def test_a_weight_that_is_none(tmp_path, weight):
    sentence = rf"ar_loss_weight={re.escape(str(weight))} is not a weight; pass a number from 0, .*'balanced'"
    with pytest.raises(ValueError, match=sentence):
        arguments(tmp_path, objective="i-dlm", ar_loss_weight=weight)

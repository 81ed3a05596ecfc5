"""WeDLMTrainingArguments: the paper's defaults, and DeepSpeed's."""

import dataclasses
import warnings

import torch

from wedlm import WeDLMTrainingArguments


def test_a_machine_without_an_accelerator_trains_on_its_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    training = WeDLMTrainingArguments(str(tmp_path), bf16=True)
    assert training.use_cpu and training.device.type == "cpu"


def test_gradient_checkpointing_needs_no_newer_name(tmp_path):
    """transformers 5.23 renamed it; the configs of this package say the name that all versions know."""
    with warnings.catch_warnings(action="error"):
        arguments = WeDLMTrainingArguments(
            str(tmp_path),
            use_cpu=True,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"early_stop": True},
        )
        again = dataclasses.replace(arguments)
    assert (again.gradient_checkpointing, again.gradient_checkpointing_kwargs) == (True, {"early_stop": True})
    assert not WeDLMTrainingArguments(str(tmp_path), use_cpu=True).gradient_checkpointing


def test_the_collator_has_the_options_of_the_run(tmp_path):
    given = {"block_size": 4, "suffix_mask_probability": 0.25, "loss_weighting": "uniform", "mask_draws": 3}
    collator = WeDLMTrainingArguments(str(tmp_path), use_cpu=True, **given).collator(mask_token_id=9)
    assert {name: getattr(collator, name) for name in given} == given

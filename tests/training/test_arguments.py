"""WeDLMTrainingArguments: the paper's defaults, and DeepSpeed's."""

import dataclasses
import json
import warnings

import pytest
import torch
from training_runs import CONFIGS

from wedlm import WeDLMTrainingArguments
from wedlm.training.run_arguments import parse


def test_the_defaults_are_those_of_the_paper(tmp_path):
    _, training = parse(["--model", "a", "--train_data", "b", "--output_dir", str(tmp_path)])
    assert (training.block_size, training.ar_loss_weight, training.loss_weighting) == (32, 1.0, "weighted")
    assert training.suffix_mask_probability == 0


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


def test_zero3_keys_are_deepspeeds():
    """The keys that DeepSpeed documents for these sections; its own check runs where it is installed."""
    documented = {
        "bf16": {"enabled"},
        "fp16": {"enabled"},
        "zero_optimization": {
            "stage", "overlap_comm", "contiguous_gradients", "reduce_bucket_size", "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold", "stage3_gather_16bit_weights_on_model_save",
        },
        "gradient_accumulation_steps": None,
        "gradient_clipping": None,
        "train_batch_size": None,
        "train_micro_batch_size_per_gpu": None,
    }  # fmt: skip
    content = json.loads((CONFIGS / "zero3.json").read_text())
    assert content.keys() <= documented.keys()
    for name, section in content.items():
        if isinstance(section, dict):
            assert section.keys() <= documented[name], name
    assert content["zero_optimization"]["stage"] == 3


@pytest.mark.ecosystem
def test_zero3_through_training_arguments(tmp_path):
    _, training = parse([str(CONFIGS / "zero3.yaml"), "--output_dir", str(tmp_path), "--use_cpu", "true"])
    assert training.hf_deepspeed_config.is_zero3()

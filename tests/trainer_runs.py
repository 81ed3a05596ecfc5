"""Runs of WeDLMTrainer on tiny models, for all objectives."""

import pytest
import torch
from datasets import Dataset
from draft_models import tiny_model
from helpers import CHECKPOINTS, load, random_tokens
from peft import get_peft_model

from wedlm import DraftLoraConfig, WeDLMTrainer, WeDLMTrainingArguments
from wedlm.training.packing import pack

LENGTHS = (40, 21, 9, 33, 12, 27, 18, 30)


def samples(lengths=LENGTHS):
    """Samples as `prepare_dataset` makes them, of random tokens; two of three begin with a prompt."""
    made = []
    for index, length in enumerate(lengths):
        text = random_tokens(1, length, seed=index)[0].tolist()
        prompt = 3 * (index % 3)
        labels = [-100] * prompt + text[prompt:]
        made.append({"input_ids": text, "labels": labels, "sample_lengths": [length], "sample_indices": [index]})
    return Dataset.from_list(made)


def adapted(flavour="qwen3", **fields):
    model = tiny_model(flavour)
    torch.manual_seed(0)
    return get_peft_model(model, DraftLoraConfig(r=4, lora_alpha=16, **fields))


def arguments(folder, **fields):
    defaults = {
        "block_size": 8, "draft_window": 4, "per_device_train_batch_size": 8, "max_steps": 2, "learning_rate": 0.02,
        "lr_scheduler_type": "constant", "optim": "sgd", "max_grad_norm": 0.0, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return WeDLMTrainingArguments(str(folder), **{**defaults, **fields})


def trained(folder, model=None, dataset=None, room=0, resume=None, **fields):
    """The weights that training changes, the log, and the trainer. With `room`, samples are packed into sequences."""
    dataset = samples() if dataset is None else dataset
    dataset = pack(dataset, room) if room else dataset
    args = arguments(folder, **fields)
    if model is None:
        model = adapted() if args.objective == "draft" else load(CHECKPOINTS / "q3")
    trainer = WeDLMTrainer(model, args, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=resume)
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.requires_grad}
    return weights, [entry for entry in trainer.state.log_history if "loss" in entry], trainer


def assert_same(first, second):
    for name, weight in first[0].items():
        torch.testing.assert_close(second[0][name], weight, rtol=1e-3, atol=3e-6)
    for entry, other in zip(first[1], second[1], strict=True):
        for name in entry.keys() - {"epoch"}:
            assert other[name] == pytest.approx(entry[name], rel=2e-4), name

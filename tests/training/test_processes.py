"""WeDLMTrainer on two processes takes the steps of one, for all objectives: DDP, FSDP2 and DeepSpeed."""

import datetime
import json
import os

import pytest
import torch
import torch.distributed as dist
from fsdp_on_cpus import FSDP, allow_fsdp, check_sharded
from processes import run_two_processes
from trainer_runs import LENGTHS, assert_same, samples, trained
from training_runs import CONFIGS

from wedlm.training import draft_loss, target_loss

UNEVEN = [*LENGTHS, 14, 25, 38]


def run(folder, fields):
    fields = dict(fields)
    return trained(folder, dataset=samples(fields.pop("lengths", LENGTHS)), **fields)


def run_as_rank(folder, ways):
    os.environ["DS_ACCELERATOR"] = "cpu"  # for DeepSpeed
    if any("fsdp" in fields for fields in ways.values()):
        allow_fsdp()
        # So that one rank calls the head more often than the other.
        draft_loss.QUERIES_PER_CHUNK = target_loss.QUERIES_PER_CHUNK = 10
    else:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))  # a rank that waits longer fails
    for name, fields in ways.items():
        weights, log, trainer = run(folder / name, fields)
        if "fsdp" in fields:
            check_sharded(trainer)
        weights = {
            key: getattr(weight, "full_tensor", lambda weight=weight: weight)() for key, weight in weights.items()
        }
        if "deepspeed" in fields:
            weights = {}  # they are in pieces, so the losses of later steps show that earlier ones were the same
        evaluated = trainer.evaluate(samples((15, 22, 31)))
        if dist.get_rank() == 0:
            torch.save((weights, log, evaluated), folder / f"{name}.pt")
    dist.destroy_process_group()


def assert_same_in_two_processes(folder, ways):
    """Each way, on two processes, against one process with twice the batch."""
    run_two_processes(run_as_rank, folder, ways)
    for name, fields in ways.items():
        weights, log, evaluated = torch.load(folder / f"{name}.pt")
        alone = {key: value for key, value in fields.items() if key not in ("fsdp", "fsdp_config", "deepspeed")}
        expected_weights, expected, trainer = run(
            folder / "alone" / name, alone | {"per_device_train_batch_size": 2 * fields["per_device_train_batch_size"]}
        )
        if "bf16" in fields:
            assert [entry["loss"] for entry in log] == pytest.approx([entry["loss"] for entry in expected], rel=0.02)
            continue
        assert_same((expected_weights if weights else {}, expected), (weights, log))
        loss = trainer.evaluate(samples((15, 22, 31)))["eval_loss"]
        assert evaluated["eval_loss"] == pytest.approx(loss, rel=1e-4), name


@pytest.mark.full
def test_ddp_takes_the_same_steps(tmp_path):
    """accelerate repeats samples, so that the last batches are full on both ranks; the repeated ones have no loss."""
    ways = {
        "accumulated": {"lengths": UNEVEN, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        "packed": {"lengths": UNEVEN, "room": 64, "per_device_train_batch_size": 1},
        "few": {"lengths": LENGTHS[:3], "per_device_train_batch_size": 4},
        "draft": {"per_device_train_batch_size": 3, "objective": "draft"},
        "i-dlm": {"per_device_train_batch_size": 3, "objective": "i-dlm", "ar_loss_weight": "balanced"},
    }
    assert_same_in_two_processes(tmp_path, {name: {"max_steps": 3, **fields} for name, fields in ways.items()})


@pytest.mark.full
def test_fsdp_takes_the_same_steps(tmp_path):
    ways = {
        "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
        | {"max_grad_norm": 0.1, "gradient_checkpointing": True},
        "uneven": {"per_device_train_batch_size": 4, "lengths": UNEVEN},
        "bf16": {"per_device_train_batch_size": 4, "bf16": True},
        "draft": {"per_device_train_batch_size": 3, "objective": "draft"},
        "i-dlm": {"per_device_train_batch_size": 4, "objective": "i-dlm", "ar_loss_weight": "balanced"},
    }
    assert_same_in_two_processes(tmp_path, {name: {**FSDP, **fields} for name, fields in ways.items()})


@pytest.mark.ecosystem
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_takes_the_same_steps(tmp_path, stage):
    config = json.loads((CONFIGS / "zero3.json").read_text())
    config["zero_optimization"]["stage"] = stage
    ways = {
        "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        "uneven": {"lengths": UNEVEN, "per_device_train_batch_size": 4},
        "draft": {"per_device_train_batch_size": 4, "max_steps": 4, "objective": "draft"},
    }
    assert_same_in_two_processes(tmp_path, {name: {"deepspeed": config, **fields} for name, fields in ways.items()})

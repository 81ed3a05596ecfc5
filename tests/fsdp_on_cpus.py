"""FSDP2 on processes of a CPU, where accelerate trains with DDP instead and does not say so."""

import datetime
import os

import torch.distributed as dist
import yaml
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from training_runs import CONFIGS

EXAMPLE = yaml.safe_load((CONFIGS / "fsdp.yaml").read_text())
FSDP = {name: EXAMPLE[name] for name in ("fsdp", "fsdp_config")}


def allow_fsdp():
    """Lets accelerate take the processes for those of GPUs, the only ones that it gives to FSDP."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))  # a rank that waits longer fails


def check_sharded(trainer):
    assert trainer.is_fsdp_enabled and trainer.accelerator.is_fsdp2
    assert all(isinstance(weight, DTensor) for weight in trainer.model.parameters())

"""FSDP on processes of a CPU, where accelerate trains with DDP instead and does not say so."""

import datetime
import os

import torch.distributed as dist
from accelerate.state import PartialState
from accelerate.utils import DistributedType


def allow_fsdp():
    """Starts gloo, and lets accelerate take the processes for GPUs' where it looks whether FSDP is possible."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))  # a rank that waits longer fails
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)

"""What tests of products and of attention in C share: instruction sets, random numbers, and guarded memory."""

import ctypes
import mmap
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from wedlm.fused import native

SETS = [] if native._kernels is None else native._kernels.instruction_sets()
NUMBERS = {name: number for number, name in enumerate(SETS) if name is not None} | {"torch": None}
COMPILED = [name for name in NUMBERS if name != "torch"]
each_set = pytest.mark.parametrize("name", NUMBERS)
each_compiled_set = pytest.mark.parametrize("name", COMPILED)
DTYPES = [torch.float32, torch.bfloat16]
NOT_FINITE = [float("nan"), float("inf"), float("-inf")]


@contextmanager
def multiplied_by(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "NUMBER", NUMBERS[name])
        yield


def normal(*shape, dtype=torch.float32, std=1.0):
    return (torch.randn(*shape) * std).to(dtype)


def norm_of(width, dtype, epsilon=1e-5):
    norm = Qwen3RMSNorm(width, eps=epsilon)
    nn.init.normal_(norm.weight, 1.0, 0.3)
    return norm.to(dtype)


def at_a_forbidden_page(tensor, place):
    """The same tensor, right before or right behind memory that nobody may read."""
    size = (tensor.nbytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    page, offset = (start, mmap.PAGESIZE) if place == "behind" else (start + size, size - tensor.nbytes)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0) == 0
    there = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
    return there.copy_(tensor.flatten()).view(tensor.shape)

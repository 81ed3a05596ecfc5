"""Keeps the memory that tensors free, while a model trains on a CPU."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# The numbers of mallopt's parameters (malloc.h), with their values during training and glibc's defaults.
ARENA_MAX, MMAP_MAX, TRIM_THRESHOLD, TOP_PAD = -8, -4, -1, -2
KEEPING = {ARENA_MAX: 1, MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 2**28}
DEFAULTS = {ARENA_MAX: 0, MMAP_MAX: 65536, TRIM_THRESHOLD: 128 * 1024, TOP_PAD: 128 * 1024}


@contextmanager
def kept_memory(device: torch.device) -> Iterator[None]:
    """Makes glibc keep freed memory for the next tensor, and gives it back to the system at the end.

    By default glibc takes large tensors from the system and returns them, and the first write to each new page costs
    more than many of the computations. Other systems, and settings of malloc in the environment, are left alone.
    """
    is_set = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if device.type != "cpu" or platform.libc_ver()[0] != "glibc" or is_set:
        yield
        return
    libc = ctypes.CDLL(None)
    for parameter, value in KEEPING.items():
        libc.mallopt(parameter, value)
    try:
        yield
    finally:
        for parameter, value in DEFAULTS.items():
            libc.mallopt(parameter, value)
        libc.malloc_trim(0)

"""Free memory as the machine, cgroups and rlimits tell it."""

import resource
from types import SimpleNamespace

import pytest
import torch

from wedlm.batching import free_memory as file
from wedlm.batching.free_memory import free_memory, is_out_of_memory

CPU, GIB = torch.device("cpu"), 2**30


@pytest.fixture
def told(monkeypatch):
    """The texts of the files that the system has; empty, and without an rlimit."""
    texts = {}
    monkeypatch.setattr(file, "text_of", lambda path: texts.get(str(path), ""))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return texts


def test_the_least_of_all_limits_counts(told, monkeypatch):
    assert free_memory(CPU) == file.UNKNOWN
    told["/proc/meminfo"] = f"MemTotal: 9 kB\nMemAvailable:   {8 * 2**20} kB\n"
    assert free_memory(CPU) == 8 * GIB
    told["/proc/self/cgroup"] = "0::/a/b\n"
    told["/sys/fs/cgroup/a/b/memory.max"], told["/sys/fs/cgroup/a/b/memory.current"] = "max\n", f"{GIB}\n"
    assert free_memory(CPU) == 8 * GIB
    told["/sys/fs/cgroup/a/memory.max"] = f"{9 * GIB}\n"  # of a cgroup above
    told["/sys/fs/cgroup/a/memory.current"] = f"{4 * GIB}\n"
    told["/sys/fs/cgroup/a/memory.stat"] = f"anon 5\ninactive_file {GIB}\n"  # files that can be read again
    assert free_memory(CPU) == 6 * GIB
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (5 * GIB, resource.RLIM_INFINITY))
    told["/proc/self/status"] = f"VmPeak: 9 kB\nVmSize:\t {2 * 2**20} kB\n"
    assert free_memory(CPU) == 3 * GIB
    told["/proc/self/status"] = f"VmSize:\t {6 * 2**20} kB\n"
    assert free_memory(CPU) == 0


def test_a_container_sees_its_own_cgroup_of_version_1(told):
    told["/proc/self/cgroup"] = "5:cpu:/x\n4:memory:/docker/of-the-host\n0::/\n"
    told["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = f"{3 * GIB}"
    told["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = f"{2 * GIB}"
    told["/sys/fs/cgroup/memory/memory.stat"] = f"inactive_file 7\ntotal_inactive_file {GIB // 2}\n"
    assert free_memory(CPU) == 3 * GIB // 2


def test_a_gpu_tells_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5, 9))
    assert free_memory(SimpleNamespace(type="cuda")) == 5


def test_errors_of_memory_are_told_from_others():
    for function, size in ((torch.empty, 2**55), (bytearray, 2**60)):
        with pytest.raises((RuntimeError, MemoryError)) as error:
            function(size)
        assert is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not any(map(is_out_of_memory, (RuntimeError("shapes differ"), ValueError("out of memory"), KeyError())))

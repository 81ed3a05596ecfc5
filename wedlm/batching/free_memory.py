"""How much memory is free, and which errors say that there was too little."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

UNKNOWN = 2**31  # bytes that are taken to be free where the system does not say
OUT_OF_MEMORY = re.compile(
    "allocate memory|not enough memory|out of memory|bad_alloc|could not create a (memory|primitive)"
)
MOUNT = Path("/sys/fs/cgroup")
# The limit, the usage and the statistics of a cgroup: of version 2, and of version 1.
CGROUP_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory(device: torch.device) -> int:
    """The free bytes on the device of the KV cache: what the machine, the cgroup and the rlimit allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    # (MemAvailable counts what the cache of files can give back.)
    of_machine = [1024 * number for number in numbers_in(Path("/proc/meminfo"), "MemAvailable")]
    return max(0, min([*of_machine, *of_cgroups(), *of_rlimit()], default=UNKNOWN))


def of_cgroups() -> Iterator[int]:
    """What is free in each cgroup of this process."""
    for line in text_of(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        folder, limit, usage, reclaimable = CGROUP_FILES[controllers == "memory"]
        # In a container the path may be that of the host; its own cgroup is then the one that is mounted.
        for part in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
            cgroup = MOUNT / folder / part
            most, used = text_of(cgroup / limit).strip(), text_of(cgroup / usage).strip()
            if most.isdigit() and used.isdigit():
                yield int(most) - int(used) + sum(numbers_in(cgroup / "memory.stat", reclaimable))


def of_rlimit() -> Iterator[int]:
    try:
        import resource
    except ImportError:  # on Windows
        return
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        yield from (most - 1024 * number for number in numbers_in(Path("/proc/self/status"), "VmSize"))


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def numbers_in(path: Path, name: str) -> list[int]:
    return [int(number) for number in re.findall(rf"^{name}:?\s+(\d+)", text_of(path), re.MULTILINE)]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was refused: Python's, or one of torch's on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None


@contextmanager
def suppress_out_of_memory() -> Iterator[None]:
    """Skips the rest of a block that can be skipped when memory is refused in it."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise

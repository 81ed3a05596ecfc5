"""How much memory is free, and which errors say that there was too little."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

UNTOLD = 2**31  # bytes that are taken to be free where the system does not tell
REFUSED = re.compile("allocate memory|not enough memory|out of memory|bad_alloc|could not create a (memory|primitive)")
MOUNT = Path("/sys/fs/cgroup")
# The limit, the usage and the statistics of a cgroup: of version 2, and of version 1.
CGROUP_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory(device: torch.device) -> int:
    """The bytes that are free where keys and values lie: what the machine, the cgroup and the rlimit allow."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return max(0, min([*of_machine(), *of_cgroups(), *of_rlimit()], default=UNTOLD))


def of_machine() -> Iterator[int]:
    # (MemAvailable counts what the cache of files can give back.)
    yield from (1024 * number for number in numbers_in(Path("/proc/meminfo"), "MemAvailable"))


def of_cgroups() -> Iterator[int]:
    """What is free in each cgroup of this process."""
    for line in text_of(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            folder, *names = CGROUP_FILES[controllers == "memory"]
            # In a container the path may be that of the host; its own cgroup is then the one that is mounted.
            for part in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
                yield from of_cgroup(MOUNT / folder / part, *names)


def of_cgroup(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    most, used = text_of(folder / limit).strip(), text_of(folder / usage).strip()
    if most.isdigit() and used.isdigit():
        yield int(most) - int(used) + sum(numbers_in(folder / "memory.stat", reclaimable))


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
    is_told = isinstance(error, RuntimeError) and REFUSED.search(str(error)) is not None
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or is_told


@contextmanager
def where_memory_allows() -> Iterator[None]:
    """Leaves out what need not be done where memory is refused for it."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise

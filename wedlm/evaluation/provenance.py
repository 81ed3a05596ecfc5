"""What every file of measured numbers holds beside them: the command, the commit, versions and the device."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch

from wedlm.checkpoints.shards import CHUNK_BYTES, shard_names

REPOSITORY = Path(__file__).resolve().parent.parent.parent


RESULTS = (":!benchmarks/results", ":!docs/evidence", ":!docs/EVIDENCE.md")


def device_name(device: torch.device | str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


def commit() -> str | None:
    """None outside a clone of the repository, and without git. Files of results are no changes."""
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        return None
    return git("rev-parse", "HEAD") + (
        "+changes" if git("status", "--porcelain", "--untracked-files=no", "--", ".", *RESULTS) else ""
    )


def commit_text(commit: str | None) -> str:
    if commit is None:
        return "of no commit"
    name, plus, _ = commit.partition("+")
    return f"commit {name[:12]}{' with changes' if plus else ''}"


def command() -> str:
    """As it would be typed in the repository."""
    program = getattr(sys.modules["__main__"], "__spec__", None)  # set by python -m
    script = Path(sys.argv[0]).resolve()
    if script.name in ("wedlm", "wedlm.exe") or program is not None and program.name == "wedlm.__main__":
        words = ["wedlm"]
    elif program is not None:
        words = ["python", "-m", program.name.removesuffix(".__main__")]
    else:
        words = ["python", str(script.relative_to(REPOSITORY) if script.is_relative_to(REPOSITORY) else script.name)]
    return shlex.join([*words, *sys.argv[1:]])


def weights_digest(folder: Path) -> str:
    """SHA-256 of the weights that are loaded from `folder`, its files in the order of their names one after another.

    Of a checkpoint in one file it is the hash of model.safetensors, which the Hub shows.
    """
    digest = sha256()
    for name in shard_names(folder):
        with open(folder / name, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def conditions(device: torch.device | str, packages: Sequence[str] = ()) -> dict[str, object]:
    """What numbers depend on besides what was asked, which is what a run that goes on must have in common."""
    return {
        "commit": commit(),
        "versions": {name: version(name) for name in ("torch", "transformers", "wedlm", *packages)}
        | {"python": platform.python_version()},
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }


def write_report(
    path: Path,
    results: dict | list,
    device: torch.device | str,
    packages: Sequence[str] = (),
    **more: object,
) -> None:
    """Replaces `path` at once, so that an interrupted run leaves the old file whole."""
    report = {"command": command(), **conditions(device, packages), **more, "results": results}
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    os.replace(unfinished, path)

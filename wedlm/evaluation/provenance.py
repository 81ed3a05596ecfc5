"""Where measured numbers come from: command, commit, versions, device and checkpoint, written beside them."""

import json
import platform
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from wedlm.checkpoints.resolve import ADAPTER_WEIGHTS, draft_adapter, is_gguf, wedlm_folder
from wedlm.checkpoints.shards import shard_names
from wedlm.checkpoints.whole_file import write_whole
from wedlm.fused.model import product_of

REPOSITORY = Path(__file__).resolve().parent.parent.parent
RESULTS = (
    ":!benchmarks/results",
    ":!docs/evidence",
    ":!docs/EVIDENCE.md",
    ":!docs/study.md",
    ":!docs/figures.md",
    ":!docs/arithmetic.md",
)  # git pathspecs that leave them out
WIDTH = 119  # columns of a record
BESIDE_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def device_name(device: torch.device | str) -> str:
    """The model of the GPU or processor."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", *arguments]  # which disturb no commit that is made at the same time
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


def commit_on_disk() -> str | None:
    """The commit, with "+changes" if files other than results differ from it; None outside of a git clone."""
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        return None
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", *RESULTS)
    return git("rev-parse", "HEAD") + ("+changes" if changes else "")


COMMIT = commit_on_disk()  # read once: this process runs the code of now, whatever stands on the disk when it reports


def commit_text(commit: str | None) -> str:
    """commit_text("0123456789abcdef+changes") == "commit 0123456789ab with changes"."""
    if commit is None:
        return "of no commit"
    name, plus, _ = commit.partition("+")
    return f"commit {name[:12]}{' with changes' if plus else ''}"


def command() -> str:
    """The command of this process as one types it in the repository."""
    program = getattr(sys.modules["__main__"], "__spec__", None)  # python -m sets it
    script = Path(sys.argv[0]).resolve()
    if script.name in ("wedlm", "wedlm.exe") or program is not None and program.name == "wedlm.__main__":
        words = ["wedlm"]
    elif program is not None:
        words = ["python", "-m", program.name.removesuffix(".__main__")]
    else:
        words = ["python", str(script.relative_to(REPOSITORY) if script.is_relative_to(REPOSITORY) else script.name)]
    return shlex.join([*words, *sys.argv[1:]])


def weights_digest(folder: Path) -> str:
    """The SHA-256 of the weights in `folder`, or of a GGUF file; if they are one file, this is the hash that the Hub
    shows."""
    digest = sha256()
    for path in [folder] if is_gguf(folder) else [folder / name for name in shard_names(folder)]:
        with open(path, "rb") as file:
            while chunk := file.read(2**24):
                digest.update(chunk)
    return digest.hexdigest()


def digests(folder: Path, adapter: Path | None) -> dict[str, str]:
    """The SHA-256 of the weights in `folder`, and that of the draft adapter's weights if there is one."""
    result = {"weights_sha256": weights_digest(folder)}
    if adapter is not None:
        result["adapter_sha256"] = sha256((adapter / ADAPTER_WEIGHTS).read_bytes()).hexdigest()
    return result


def checkpoint_identity(model: PreTrainedModel, folder: Path) -> dict[str, Any]:
    """What identifies a checkpoint that was loaded from `folder`: weights and their form, files, generation config.

    For a draft adapter these are the files of its base, and its own weights in addition.
    """
    adapter, folder = draft_adapter(folder), wedlm_folder(folder, with_weights=True, or_stock=True)
    beside = [path for name in BESIDE_WEIGHTS if (path := folder / name).exists()]
    return {
        **digests(folder, adapter),
        "files_sha256": sha256(b"".join(path.read_bytes() for path in beside)).hexdigest(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "product": product_of(model),
        "generation_config": model.generation_config.to_diff_dict(),
    }


def conditions(device: torch.device | str, packages: Sequence[str] = ()) -> dict[str, object]:
    """Commit, versions, device and threads, which a run that continues a stopped one must share with it.

    `packages` are those whose versions matter besides torch, transformers and wedlm.
    """
    versions = {name: version(name) for name in ("torch", "transformers", "wedlm", *packages)}
    return {
        "commit": COMMIT,
        "versions": versions | {"python": platform.python_version()},
        "device": device_name(device),
        "threads": torch.get_num_threads(),
    }


def record_text(value: Any, name: str = "", depth: int = 0) -> str:
    """JSON in short: what fits into a line has one, a list or dict of plain values fills lines."""
    start = " " * depth + name
    line = start + json.dumps(value)
    if not isinstance(value, dict | list) or len(line) < WIDTH:
        return line
    entries = value.items() if isinstance(value, dict) else (("", each) for each in value)
    named = [(f"{json.dumps(key)}: " if isinstance(value, dict) else "", each) for key, each in entries]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    if any(isinstance(each, dict | list) for _, each in named):
        lines = ",\n".join(record_text(each, name, depth + 1) for name, each in named)
        return f"{start}{opening}\n{lines}\n{' ' * depth}{closing}"
    words = ", ".join(f"{name}{json.dumps(each)}".replace(" ", "\0") for name, each in named)
    indent = {"initial_indent": start, "subsequent_indent": " " * (depth + 1)}
    filled = textwrap.fill(opening + words + closing, WIDTH, **indent, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


def write_report(
    path: Path,
    results: dict | list,
    device: torch.device | str,
    packages: Sequence[str] = (),
    **more: object,
) -> None:
    """Writes a JSON file of results with command, conditions and `more`; an old file is replaced in one step."""
    report = {"command": command(), **conditions(device, packages), **more, "results": results}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, record_text(report) + "\n")

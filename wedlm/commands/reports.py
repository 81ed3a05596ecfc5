"""Tables and files that commands write, and measurements that go on where they were stopped."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.console import Console

from wedlm.evaluation.provenance import weights_digest
from wedlm.evaluation.work_file import WorkFile
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

PIPE_WIDTH = 200  # so that no line of a table is broken
BESIDE_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def table_console() -> Console:
    """A console for tables; in a pipe or a file it is wide enough to keep their lines whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def check_out(out: Path, overwrite: bool) -> None:
    """Refuses a file of --out that cannot be made, or that exists and may not be replaced."""
    if out.is_dir() or not out.resolve().parent.is_dir():
        raise ValueError(f"--out {out} is a folder, or lies in one that is not there; choose a file.")
    if out.exists() and not overwrite:
        raise ValueError(f"--out {out} exists; choose another file, or pass --overwrite.")


def check_writable(option: str, file: Path) -> None:
    """Refuses a file that could not be written later."""
    where = file.resolve().parent if is_ordinary(file) else file
    if file.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        raise ValueError(
            f"{option} {file} cannot be written; give the name of a file in a folder that you may write to."
        )


def is_ordinary(file: Path) -> bool:
    """Whether the file is one, or will be; /dev/stdout and its like are written to and never replaced."""
    return file.is_file() or not file.exists()


def write_whole(file: Path, text: str) -> None:
    """Writes all of a text to a file, or leaves the file as it was."""
    if not is_ordinary(file):
        file.write_text(text, encoding="utf-8")
        return
    file = file.resolve()  # or a link would be replaced
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def identity_of(model: WeDLMForCausalLM, folder: Path) -> dict[str, Any]:
    """Everything about a checkpoint that its answers depend on: weights, files beside them, dtype and generation."""
    beside = [path for name in BESIDE_WEIGHTS if (path := folder / name).exists()]
    return {
        "weights_sha256": weights_digest(folder),
        "files_sha256": sha256(b"".join(path.read_bytes() for path in beside)).hexdigest(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "generation_config": model.generation_config.to_diff_dict(),
    }


@contextmanager
def resumable(work: WorkFile) -> Iterator[None]:
    """Says where a measurement goes on from, and after Ctrl-C where it will; a failure leaves no empty work file."""
    if work.results:
        print(f"Going on from the results in {work.path.parent}.", file=sys.stderr)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nStopped; the same command goes on from the results in {work.path.parent}.", file=sys.stderr)
        raise
    except BaseException:
        if not work.results:
            work.remove()
        raise

"""Tables and files that commands write."""

import os
from pathlib import Path

from rich.console import Console

from wedlm.checkpoints.whole_file import is_ordinary

PIPE_WIDTH = 200  # so that no line of a table is broken


def table_console() -> Console:
    """A console for tables; in a pipe or a file it is wide enough to keep their lines whole."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def check_out_file(out: Path, overwrite: bool) -> None:
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

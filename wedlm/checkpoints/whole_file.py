"""Atomic writes of single files."""

import os
from pathlib import Path


def is_ordinary(file: Path) -> bool:
    """Whether a path is a file or is missing; /dev/stdout and its like are written to and never replaced."""
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

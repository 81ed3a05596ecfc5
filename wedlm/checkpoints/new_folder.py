"""The folder that a conversion writes: absent or complete, whatever happens to the process."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wedlm.checkpoints.conversion_error import ConversionError


def check_out(out: str | os.PathLike, overwrite: bool) -> Path:
    try:
        out = Path(out).resolve()
        if out.exists() and not out.is_dir():
            raise ConversionError(f"{out} is a file; choose a folder that does not exist yet.")
        is_used = out.exists() and any(out.iterdir())
    except (OSError, RuntimeError) as error:  # the latter for a link to itself
        raise ConversionError(f"{out} cannot be looked into ({error}); choose another place.") from error
    # The folder itself is replaced, which a mount cannot be, and where a shell sits should not.
    if os.path.ismount(out) or out in (Path.cwd(), *Path.cwd().parents):
        raise ConversionError(f"{out} is a mount point, or the folder you are in; choose a new folder inside of it.")
    if is_used and not overwrite:
        raise ConversionError(f"{out} exists and is not empty; choose another folder, or pass --overwrite.")
    if is_used and not is_checkpoint(out):
        raise ConversionError(f"{out} is no checkpoint, and only a checkpoint is overwritten; empty it yourself.")
    return out


def check_apart(out: Path, source: Path) -> None:
    source = source.resolve()
    if out == source or out in source.parents or source in out.parents:
        raise ConversionError(
            f"{out} and the source {source} are the same folder, or one lies in the other; choose another place for "
            "the result."
        )


def is_checkpoint(folder: Path) -> bool:
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def leftovers(out: Path) -> list[str]:
    """Folders beside `out` that a killed conversion left, or that one now running is using."""
    if not out.parent.is_dir():
        return []
    prefixes = (f"{out.name}.incomplete-", f"{out.name}.replaced-")
    return sorted(str(path) for path in out.parent.iterdir() if path.name.startswith(prefixes))


def check_space(out: Path, num_bytes: int) -> None:
    existing = next(path for path in out.parents if path.exists())  # it is written beside `out`
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        old = leftovers(out)
        raise ConversionError(
            f"{out} needs {num_bytes / 1e9:.2f} GB and its disk has {free / 1e9:.2f} GB free; free some"
            + (f" (what a killed conversion left can go: {', '.join(old)})" if old else "")
            + ", or choose another disk."
        )


@contextmanager
def complete_or_absent(out: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder beside `out` that takes its place when the block has ended, and goes away if it fails.

    With `overwrite`, what `out` held goes away last; a kill may leave `OUT.incomplete-...` or `OUT.replaced-...`.
    """
    suffix = secrets.token_hex(4)
    new, old = out.with_name(f"{out.name}.incomplete-{suffix}"), out.with_name(f"{out.name}.replaced-{suffix}")
    new_parents = [path for path in out.parents if not path.exists()]  # from the innermost on
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        yield new
        for path in new.rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())  # or the new name could outlive a power cut, and the bytes not
        if out.exists():
            if overwrite:
                out.rename(old)
            else:
                out.rmdir()  # it was empty; if it is not any more, this fails
        new.rename(out)
    finally:  # after Ctrl-C too
        if old.exists():
            if out.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.rename(out)
        shutil.rmtree(new, ignore_errors=True)
        if not out.exists():
            with suppress(OSError):
                for path in new_parents:
                    path.rmdir()

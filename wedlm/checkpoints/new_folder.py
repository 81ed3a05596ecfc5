"""The folder that a conversion, a merge or an export writes: it appears complete, or not at all."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from huggingface_hub import constants

from wedlm.checkpoints.errors import CheckpointError

TARGET, DRAFTER = "target", "drafter"  # the folders of an export for vLLM
DRAFTS_FILE = "drafts.safetensors"  # in the drafter


def check_out(out: str | os.PathLike, overwrite: bool) -> Path:
    """Refuses a folder that may not be written, and returns its absolute path.

    It may be missing or empty; with `overwrite` it may hold a checkpoint, an adapter or an export for vLLM.
    """
    try:
        out = Path(out).resolve()
        if out.exists() and not out.is_dir():
            raise CheckpointError(f"{out} is a file; choose a folder that does not exist yet.")
        is_used = out.exists() and any(out.iterdir())
    except (OSError, RuntimeError) as error:  # a link to itself raises a RuntimeError
        raise CheckpointError(f"{out} cannot be read ({error}); choose another folder.") from error
    # The folder itself is replaced. A mount point cannot be, and the folder of a shell should not be.
    if os.path.ismount(out) or out in (Path.cwd(), *Path.cwd().parents):
        raise CheckpointError(f"{out} is a mount point, or the folder you are in; choose a new folder inside of it.")
    if is_used and not overwrite:
        raise CheckpointError(
            f"{out} exists and is not empty; choose another folder, or pass --overwrite (in Python overwrite=True)."
        )
    if is_used and not is_checkpoint(out) and not is_export_for_vllm(out):
        raise CheckpointError(f"{out} is not a checkpoint, and only a checkpoint is overwritten; empty it yourself.")
    return out


def check_apart(out: Path, source: Path) -> None:
    source = source.resolve()
    if out == source or out in source.parents or source in out.parents:
        raise CheckpointError(
            f"{out} and the source {source} are the same folder, or one lies in the other; choose another place for "
            "the result."
        )


def check_links(source: Path) -> None:
    """Refuses a link out of a checkpoint folder, whose files are copied: it would publish any file of this machine."""
    real = source.resolve()
    roots = [real, Path(constants.HF_HUB_CACHE).resolve()]  # older versions made links into it
    if real.parent.name == "snapshots":  # of any cache, whose links lead to `blobs` beside `snapshots`
        roots.append(real.parents[1] / "blobs")
    for path in (*source.iterdir(), *source.glob("*/*.jinja")):
        target = Path(os.path.realpath(path))
        if not any(target.is_relative_to(root) for root in roots):
            raise CheckpointError(
                f"{path} is a link to {target}, outside of the checkpoint; put a copy of the file there, or remove "
                "the link."
            )


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint, an adapter of PEFT, or an export of the decoding alone."""
    if (folder / "custom_generate" / "generate.py").is_file():
        return True
    return has_field(folder / "config.json", "model_type") or has_field(folder / "adapter_config.json", "peft_type")


def is_export_for_vllm(folder: Path) -> bool:
    """Whether a folder holds an export for vLLM; one that holds other things beside it is refused."""
    drafter = folder / DRAFTER
    if not has_field(drafter / "config.json", "pard_token") or not (drafter / DRAFTS_FILE).is_file():
        return False
    if others := sorted({path.name for path in folder.iterdir()} - {TARGET, DRAFTER, "README.md"}):
        raise CheckpointError(
            f"{folder} holds {others[:3]} beside an export for vLLM, which would be lost; put them elsewhere first."
        )
    return True


def has_field(path: Path, name: str) -> bool:
    try:
        return name in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def leftovers(out: Path) -> list[str]:
    """The folders beside `out` that a killed conversion left, or that a running one uses."""
    prefixes = (f"{out.name}.incomplete-", f"{out.name}.replaced-")
    return sorted(str(path) for path in out.parent.glob("*") if path.name.startswith(prefixes))


def check_space(out: Path, num_bytes: int) -> None:
    existing = next(path for path in out.parents if path.exists())  # the new folder is written beside `out`
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        old = leftovers(out)
        raise CheckpointError(
            f"{out} needs {num_bytes / 1e9:.2f} GB and its disk has {free / 1e9:.2f} GB free; free some"
            + (f" (a killed conversion left {', '.join(old)}, which can go)" if old else "")
            + ", or choose another disk."
        )


@contextmanager
def complete_or_absent(out: Path, overwrite: bool) -> Iterator[Path]:
    """Yields a new folder beside `out` that is renamed to `out` when the block ends, and removed when it fails.

    The checkpoint that is replaced is removed last. A kill may leave `OUT.incomplete-...` or `OUT.replaced-...`.
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
                    os.fsync(file.fileno())  # or a power cut could leave the new name without the bytes
        if out.exists():
            if overwrite:
                out.rename(old)
            else:
                out.rmdir()  # fails if somebody has put something into the empty folder
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

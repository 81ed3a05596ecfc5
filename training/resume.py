"""Finds the checkpoint that a run resumes from, where a kill may have cut the newest one short."""

import json
import os
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.shards import INDEX_FILE, SINGLE_FILE, shard_names
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.run_errors import TrainingError

STATE_FILE = "trainer_state.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")


def checkpoint_to_resume(training: WeDLMTrainingArguments) -> str | None:
    """Returns the checkpoint that `resume_from_checkpoint` means: a folder, or for "true" the last complete one."""
    given = training.resume_from_checkpoint
    if given is None or given.lower() == "false":
        return None
    if given.lower() == "true":
        return last_complete_checkpoint(training)
    if reason := incompleteness(Path(given), training):
        raise TrainingError(
            f"resume_from_checkpoint={given} is not a complete checkpoint, because {reason}; name another "
            "checkpoint-... folder, or pass true for the last complete one."
        )
    return given


def last_complete_checkpoint(training: WeDLMTrainingArguments) -> str:
    """Returns the newest checkpoint of output_dir that is complete, and prints which newer ones are left out."""
    left_out: list[str] = []
    checkpoint = newest_complete(training, left_out)
    reasons = f"left out: {'; '.join(left_out)}"
    if checkpoint is None:
        raise TrainingError(
            f"resume_from_checkpoint={training.resume_from_checkpoint}: there is no complete checkpoint in "
            f"{training.output_dir}{f' ({reasons})' if left_out else ''}; name a checkpoint-... folder, or leave the "
            "argument out to start anew."
        )
    if left_out and training.process_index == 0:
        print(f"The run resumes from {checkpoint}; {reasons}.")
    return checkpoint


def newest_complete(training: WeDLMTrainingArguments, left_out: list[str] | None = None) -> str | None:
    """Returns the newest checkpoint of output_dir that is complete; None if there is none.

    Newer ones are added to `left_out`, each with the reason.
    """
    for checkpoint in newest_first(Path(training.output_dir)):
        reason = incompleteness(checkpoint, training)
        if reason is None:
            return str(checkpoint)
        if left_out is not None:
            left_out.append(f"{checkpoint.name}, because {reason}")
    return None


def newest_first(folder: Path) -> list[Path]:
    """The checkpoints of a Trainer, and no copy that somebody named otherwise."""
    steps = {path: path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in folder.glob("*/")}
    found = [path for path, step in steps.items() if step.isdecimal() and step != path.name]
    return sorted(found, key=lambda path: int(steps[path]), reverse=True)


def incompleteness(checkpoint: Path, training: WeDLMTrainingArguments) -> str | None:
    """Says which file of a checkpoint is missing or cut short; None if the checkpoint is complete.

    Only the ends of large files are read. FSDP and DeepSpeed have files of their own for weights and optimizer, of
    which those that are there are checked.
    """
    names = [STATE_FILE]
    if not is_sharded(training):
        names += weight_files(checkpoint)
        if not training.save_only_model:
            # With several processes, there is a file of random states for each.
            random_states = next((path.name for path in checkpoint.glob("rng_state*.pth")), "rng_state.pth")
            names += ["optimizer.pt", "scheduler.pt", random_states]
    for name in names:
        if not (checkpoint / name).is_file():
            return f"its {name} is missing"
    for path in sorted(checkpoint.rglob("*")):
        if path.suffix in READABLE and not READABLE[path.suffix](path):
            return f"its {path.name} is cut short"
    return None


def is_sharded(training: WeDLMTrainingArguments) -> bool:
    """Whether FSDP or DeepSpeed is on, by an argument or by `accelerate launch`, which sets variables."""
    launched = (os.environ.get(f"ACCELERATE_USE_{name}", "").lower() for name in ("FSDP", "DEEPSPEED"))
    return bool(training.fsdp or training.deepspeed or any(value in ("true", "1") for value in launched))


def weight_files(checkpoint: Path) -> list[str]:
    if any((checkpoint / name).exists() for name in ADAPTER_FILES):
        return list(ADAPTER_FILES)
    if not (checkpoint / INDEX_FILE).exists():
        return [SINGLE_FILE]
    try:
        return shard_names(checkpoint)
    except CheckpointError:
        return [INDEX_FILE]  # it is there, and is not JSON


def is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return False


def is_safetensors(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False


# Of a file of torch.save() only the end is read, where its table of contents lies.
READABLE = {
    ".safetensors": is_safetensors,
    ".json": is_json,
    **dict.fromkeys((".pt", ".pth", ".bin"), zipfile.is_zipfile),
}

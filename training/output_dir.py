"""The folder of a run: it is checked, a stopped run goes on, and a finished one is not replaced unless asked."""

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from wedlm.checkpoints.architectures import wedlm_model
from wedlm.checkpoints.new_folder import check_space, is_checkpoint
from wedlm.checkpoints.shards import INDEX_FILE
from wedlm.checkpoints.whole_file import write_whole
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.data_files import find_files
from wedlm.training.resume import ADAPTER_FILES, checkpoint_to_resume, newest_complete, newest_first
from wedlm.training.run_arguments import RunArguments
from wedlm.training.run_errors import TrainingError

RUN_FILE = "training_run.json"  # the arguments of the run, written before its first step
REPORT_FILE = "training_report.json"  # the last file that a run writes
MAY_DIFFER = ("overwrite", "preview", "output_dir", "resume_from_checkpoint")  # when the same run goes on
CHECKPOINTS = f"{PREFIX_CHECKPOINT_DIR}-*"
# What makes a folder that of a run; everything else in it has a name that the new run writes too, or is the user's.
RUN_PATTERNS = (CHECKPOINTS, "*.safetensors", INDEX_FILE, "config.json", ADAPTER_FILES[1], REPORT_FILE)


# --- Before the run ---


def check_output_dir(run: RunArguments, training: WeDLMTrainingArguments, fields: dict) -> None:
    """Refuses an output_dir that cannot be written, or whose disk has no room for a checkpoint. It writes nothing."""
    folder = Path(training.output_dir).resolve()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryDirectory(dir=existing).cleanup()
    except OSError as error:
        raise TrainingError(
            f"output_dir={training.output_dir} cannot be written ({error.strerror}: {existing}); choose another "
            "folder."
        ) from error
    check_space(folder / "checkpoint", checkpoint_size(run, training, fields))


def checkpoint_size(run: RunArguments, training: WeDLMTrainingArguments, fields: dict) -> int:
    """Returns the least size of a checkpoint in bytes; 0 for an adapter, which is small."""
    if run.lora_r:
        return 0
    _, model = wedlm_model(fields, run.model)
    dtype = torch.float32 if run.dtype == "auto" else getattr(torch, run.dtype)
    is_adam = training.optim.value in ("adamw_torch", "adamw_torch_fused")  # two numbers for each weight
    has_optimizer = is_adam and not training.save_only_model and training.save_strategy.value != "no"
    return model.num_parameters() * dtype.itemsize * (3 if has_optimizer else 1)


def first_checkpoint(run: RunArguments, training: WeDLMTrainingArguments) -> str | None:
    """Returns the checkpoint that a run begins with, as one process finds it; None for a run from the first step.

    `resume_from_checkpoint` comes before what output_dir holds. With `overwrite` another run there is no obstacle,
    and the same run goes on too.
    """
    found: list[str | None] = [None, None]
    if training.process_index == 0:
        try:
            resumed, folder = checkpoint_to_resume(training), Path(training.output_dir)
            for name, path in (("model", run.model), ("resume_from_checkpoint", resumed)) if run.overwrite else ():
                if is_removed(path, folder):
                    raise TrainingError(
                        f"overwrite=True would remove {name}={path}, which lies in output_dir={training.output_dir}; "
                        "choose another output_dir, or leave overwrite out."
                    )
            stopped = None if is_within(resumed, folder) else checkpoint_of_stopped_run(run, training)
            found[0] = stopped if resumed is None else resumed
        except (ValueError, OSError) as error:  # the other processes wait for this one
            found[1] = str(error)
    broadcast_object_list(found)
    if found[1] is not None:
        raise TrainingError(found[1])
    return found[0]


def is_within(path: str | None, folder: Path) -> bool:
    return path is not None and Path(path).resolve().is_relative_to(folder.resolve())


def is_removed(path: str | None, folder: Path) -> bool:
    """Whether `overwrite` removes what a path names: a model in the folder, or a checkpoint of its run."""
    is_folder = path is not None and Path(path).resolve() == folder.resolve()
    return is_folder or any(is_within(path, checkpoint) for checkpoint in folder.glob(CHECKPOINTS))


def checkpoint_of_stopped_run(run: RunArguments, training: WeDLMTrainingArguments) -> str | None:
    """Returns the last complete checkpoint of a run with the same arguments; refuses a folder that holds another."""
    folder = Path(training.output_dir)
    checkpoints, is_finished = newest_first(folder), (folder / REPORT_FILE).exists()
    if not (checkpoints or is_finished or is_checkpoint(folder)):
        return None
    kind = "a finished run" if is_finished else other_run(folder, recorded_arguments(run, training))
    if kind is not None:
        if run.overwrite:
            return None
        resume = "pass --resume_from_checkpoint true to go on from its last checkpoint, " if checkpoints else ""
        raise TrainingError(
            f"output_dir={folder} holds {kind}; {resume}pass --overwrite to replace it, or choose another folder."
        )
    checkpoint = newest_complete(training)
    if checkpoint is not None:
        print(f"The run was stopped, and goes on from {checkpoint}.")
    return checkpoint


def other_run(folder: Path, wanted: dict[str, object]) -> str | None:
    """What a folder holds if it is not a run with these arguments."""
    try:
        before = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "a checkpoint"
    differing = next((name for name, value in wanted.items() if before.get(name, value) != value), None)
    return None if differing is None else f"a run with another {differing}"


def recorded_arguments(run: RunArguments, training: WeDLMTrainingArguments) -> dict[str, object]:
    """The arguments as JSON, and of each file of data the size and the time, because reading all of it takes long."""
    arguments = asdict(run) | json.loads(training.to_json_string())
    files = find_files([*run.train_data, *run.eval_data])
    stats = {file: [os.stat(file).st_size, os.stat(file).st_mtime_ns] for file in files}
    return {name: value for name, value in arguments.items() if name not in MAY_DIFFER} | {
        "content of the data": stats
    }


# --- At the start of the run ---


def is_first_process(training: WeDLMTrainingArguments) -> bool:
    """Whether this process is the one that writes to the disk that it sees."""
    return (training.local_process_index if training.save_on_each_node else training.process_index) == 0


def begin_run(run: RunArguments, training: WeDLMTrainingArguments, checkpoint: str | None) -> None:
    """Removes the run that `overwrite` replaces, if it does not go on from `checkpoint`, and records the arguments."""
    with training.main_process_first(local=training.save_on_each_node, desc="preparing output_dir"):
        if not is_first_process(training):
            return
        folder = Path(training.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        is_replaced = run.overwrite and not is_within(checkpoint, folder)
        for path in [path for pattern in RUN_PATTERNS for path in folder.glob(pattern)] if is_replaced else ():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        write_whole(folder / RUN_FILE, json.dumps(recorded_arguments(run, training), indent=2) + "\n")

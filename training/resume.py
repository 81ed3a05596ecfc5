"""What an earlier run has left in output_dir: a stopped one goes on, and a finished one is not replaced unasked."""

import json
import os
import re
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path

from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.new_folder import is_checkpoint
from wedlm.checkpoints.shards import INDEX_FILE, SINGLE_FILE, shard_names
from wedlm.checkpoints.whole_file import write_whole
from wedlm.modeling_wedlm.modeling_wedlm import unreadable_weights
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.errors import TrainingError
from wedlm.training.records import find_files
from wedlm.training.run_arguments import RunArguments
from wedlm.training.run_report import REPORT_FILE

STATE_FILE = "trainer_state.json"
RUN_FILE = "training_run.json"  # the arguments of the run, written before its first step
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
MAY_DIFFER = ("overwrite", "preview", "output_dir", "resume_from_checkpoint")  # when the same run goes on
# What makes a folder that of a run; everything else in it has a name that the new run writes too, or is the user's.
OF_A_RUN = (f"{PREFIX_CHECKPOINT_DIR}-*", "*.safetensors", INDEX_FILE, "config.json", ADAPTER_FILES[1], REPORT_FILE)


# --- The run that output_dir holds ---


def checkpoint_to_go_on_from(run: RunArguments, training: WeDLMTrainingArguments) -> str | None:
    """Returns the checkpoint that a run begins with, as one process finds it; None for a run from the first step.

    Args:
        run (`RunArguments`): The arguments; with `overwrite` another run is no obstacle, and the same one goes on too.
        training (`WeDLMTrainingArguments`): The same; `resume_from_checkpoint` comes before what is found.
    """
    found: list[str | None] = [None, None]
    if training.process_index == 0:
        try:
            asked, folder = checkpoint_to_resume(training), Path(training.output_dir)
            for name, read in (("model", run.model), ("resume_from_checkpoint", asked)) if run.overwrite else ():
                if is_removed(read, folder):
                    raise TrainingError(
                        f"overwrite=True would remove {name}={read}, which lies in output_dir={training.output_dir}; "
                        "choose another output_dir, or leave overwrite out."
                    )
            stopped = None if is_within(asked, folder) else checkpoint_of_stopped_run(run, training)
            found[0] = stopped if asked is None else asked
        except (ValueError, OSError) as error:  # the other processes wait for this one
            found[1] = str(error)
    broadcast_object_list(found)
    if found[1] is not None:
        raise TrainingError(found[1])
    return found[0]


def is_within(path: str | None, folder: Path) -> bool:
    return path is not None and folder.resolve() in (Path(path).resolve(), *Path(path).resolve().parents)


def is_removed(path: str | None, folder: Path) -> bool:
    """Whether `overwrite` removes what a path names: a model in the folder, or a checkpoint of its run."""
    is_folder = path is not None and Path(path).resolve() == folder.resolve()
    return is_folder or any(is_within(path, each) for each in folder.glob(OF_A_RUN[0]))


def checkpoint_of_stopped_run(run: RunArguments, training: WeDLMTrainingArguments) -> str | None:
    """Returns the last complete checkpoint of a run with the same arguments; refuses a folder that holds another."""
    folder = Path(training.output_dir)
    checkpoints, is_finished = newest_first(folder), (folder / REPORT_FILE).exists()
    if not (checkpoints or is_finished or is_checkpoint(folder)):
        return None
    differing = None if is_finished else differing_argument(folder, recorded(run, training))
    if is_finished or differing is not None:
        if run.overwrite:
            return None
        kind = "a finished run" if is_finished else f"a run with another {differing}" if differing else "a checkpoint"
        resume = "pass --resume_from_checkpoint true to go on from its last checkpoint, " if checkpoints else ""
        raise TrainingError(
            f"output_dir={folder} holds {kind}; {resume}pass --overwrite to replace it, or choose another folder."
        )
    checkpoint = newest_complete(training)
    if checkpoint is not None:
        print(f"The run was stopped, and goes on from {checkpoint}.")
    return checkpoint


def recorded(run: RunArguments, training: WeDLMTrainingArguments) -> dict[str, object]:
    """The arguments as JSON, and of each file of data the size and the time, because reading all of it takes long."""
    arguments = asdict(run) | json.loads(training.to_json_string())
    files = find_files([*run.train_data, *run.eval_data])
    stats = {file: [os.stat(file).st_size, os.stat(file).st_mtime_ns] for file in files}
    return {name: value for name, value in arguments.items() if name not in MAY_DIFFER} | {
        "content of the data": stats
    }


def differing_argument(folder: Path, wanted: dict[str, object]) -> str | None:
    """The first argument that the recorded run had otherwise; None if there is none, "" if nothing is recorded."""
    try:
        before = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        return next((name for name, value in wanted.items() if before.get(name, value) != value), None)
    except (OSError, ValueError, AttributeError):
        return ""


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
        for path in [path for pattern in OF_A_RUN for path in folder.glob(pattern)] if is_replaced else ():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        write_whole(folder / RUN_FILE, json.dumps(recorded(run, training), indent=2) + "\n")


# --- Checkpoints, of which a kill may have cut one short ---


def checkpoint_to_resume(training: WeDLMTrainingArguments) -> str | None:
    """Returns the checkpoint to resume from; `resume_from_checkpoint: true` is the last complete one in output_dir."""
    asked = training.resume_from_checkpoint
    if asked is None or asked.lower() == "false":
        return None
    if asked.lower() == "true":
        return last_complete_checkpoint(training)
    if not (Path(asked) / STATE_FILE).exists():
        raise TrainingError(no_checkpoint(training, asked))
    if reason := incompleteness(Path(asked), training):
        raise TrainingError(
            f"resume_from_checkpoint={asked}: {reason}, so the run that wrote it was killed; name an earlier "
            "checkpoint-... folder, or pass true for the last complete one."
        )
    return asked


def last_complete_checkpoint(training: WeDLMTrainingArguments) -> str:
    """Returns the newest checkpoint of output_dir that is complete, and prints which newer ones are left out."""
    left_out = []
    for checkpoint in newest_first(Path(training.output_dir)):
        reason = incompleteness(checkpoint, training)
        if reason is None:
            if left_out and training.process_index == 0:
                print(f"The run resumes from {checkpoint}; left out: {'; '.join(left_out)}.")
            return str(checkpoint)
        left_out.append(f"{checkpoint.name}, because {reason}")
    raise TrainingError(no_checkpoint(training, training.output_dir, left_out))


def no_checkpoint(training: WeDLMTrainingArguments, place: str, left_out: list[str] | None = None) -> str:
    kind = (
        f"complete checkpoint in {place} (left out: {'; '.join(left_out)})" if left_out else f"checkpoint in {place}"
    )
    return (
        f"resume_from_checkpoint={training.resume_from_checkpoint}: there is no {kind}; name a checkpoint-... folder, "
        "or leave the argument out to start anew."
    )


def newest_complete(training: WeDLMTrainingArguments) -> str | None:
    """Returns the newest checkpoint of output_dir that is complete; None if there is none."""
    complete = (path for path in newest_first(Path(training.output_dir)) if incompleteness(path, training) is None)
    return next(map(str, complete), None)


def newest_first(folder: Path) -> list[Path]:
    steps = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        name = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)
        if name and path.is_dir():
            steps[int(name[1])] = path
    return [steps[step] for step in sorted(steps, reverse=True)]


def incompleteness(checkpoint: Path, training: WeDLMTrainingArguments) -> str | None:
    """Says which file of a checkpoint is missing or cut short; None if the checkpoint is complete.

    Only the ends of large files are read. FSDP and DeepSpeed have files of their own for weights and optimizer, of
    which those that are there are checked.
    """
    names = [STATE_FILE]
    if not is_sharded(training):
        names = [*weight_files(checkpoint), STATE_FILE]
        if not training.save_only_model:
            # With several processes, there is a file of random states for each.
            random_states = next((path.name for path in checkpoint.glob("rng_state*.pth")), "rng_state.pth")
            names += ["optimizer.pt", "scheduler.pt", random_states]
    for name in names:
        if not (checkpoint / name).is_file():
            return f"its {name} is missing"
    if names := unreadable_weights(checkpoint):
        return f"its {names[0]} is cut short"
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
        return [INDEX_FILE]  # it is there, and is no JSON


def is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def is_archive(path: Path) -> bool:
    """Whether the end of a file of torch.save() is there, where its table of contents lies."""
    try:
        zipfile.ZipFile(path).close()
    except (OSError, zipfile.BadZipFile):
        return False
    return True


READABLE = {".json": is_json, ".pt": is_archive, ".pth": is_archive, ".bin": is_archive}

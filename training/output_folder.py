"""The folder that a run writes: whether it can be written, whether its disk has room, and a disk that gets full."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import PreTrainedConfig

from wedlm.checkpoints.architectures import STOCK, wedlm_model
from wedlm.checkpoints.new_folder import check_space
from wedlm.modeling_wedlm.model_type import MODEL_TYPE
from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.errors import TrainingError
from wedlm.training.run_arguments import RunArguments

FULL = (errno.ENOSPC, errno.EDQUOT)
NEARLY_NOTHING = 2**24  # bytes that may stay free where a write has failed


def check_output_folder(run: RunArguments, training: WeDLMTrainingArguments, config: PreTrainedConfig) -> None:
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
    check_space(folder / "checkpoint", bytes_of_checkpoint(run, training, config))


def bytes_of_checkpoint(run: RunArguments, training: WeDLMTrainingArguments, config: PreTrainedConfig) -> int:
    """Returns the least size of a checkpoint; 0 for an adapter, which is small."""
    if run.lora_r or config.model_type not in (MODEL_TYPE, *STOCK):
        return 0
    _, model = wedlm_model(config.to_dict(), run.model)
    dtype = torch.float32 if run.dtype == "auto" else getattr(torch, run.dtype)
    is_adam = training.optim.value in ("adamw_torch", "adamw_torch_fused")  # two numbers for each weight
    has_optimizer = is_adam and not training.save_only_model and training.save_strategy.value != "no"
    return model.num_parameters() * dtype.itemsize * (3 if has_optimizer else 1)


@contextmanager
def full_disks(training: WeDLMTrainingArguments) -> Iterator[None]:
    """Turns the errors of writing to a full disk, of which each library has its own, into one sentence."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not is_of_full_disk(error, Path(training.output_dir)):
            raise
        raise TrainingError(
            f"The disk of output_dir={training.output_dir} is full, so the model could not be saved; free some space, "
            "and pass resume_from_checkpoint=true to go on from the last complete checkpoint, if there is one."
        ) from error


def is_of_full_disk(error: Exception, folder: Path) -> bool:
    if getattr(error, "errno", None) in FULL or "No space left" in str(error):
        return True
    # torch.save() says only that a write has failed.
    is_of_torch = isinstance(error, RuntimeError) and "PytorchStreamWriter" in str(error)
    return is_of_torch and shutil.disk_usage(folder).free < NEARLY_NOTHING

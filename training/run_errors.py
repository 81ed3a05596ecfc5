"""TrainingError, and the errors of other libraries that `wedlm train` turns into it."""

import errno
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from safetensors import SafetensorError

if TYPE_CHECKING:  # it imports torch, and `wedlm train --help` needs only the error
    from transformers import TrainingArguments

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
NEARLY_NOTHING = 2**24  # bytes that may stay free where a write has failed


class TrainingError(ValueError):
    """Data, an argument or a tokenizer that training cannot work with; the message is one sentence with the remedy."""


@contextmanager
def as_training_errors() -> Iterator[None]:
    """Turns the errors of transformers, PEFT and the collator into a TrainingError with the same words."""
    try:
        yield
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        raise TrainingError(" ".join(str(error).split())) from error


@contextmanager
def full_disk_errors(training: "TrainingArguments") -> Iterator[None]:
    """Turns the errors of writing to a full disk, of which each library has its own, into one sentence."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if not is_full_disk(error, training.output_dir):
            raise
        raise TrainingError(
            f"The disk of output_dir={training.output_dir} is full, so the model could not be saved; free some space, "
            "and pass resume_from_checkpoint=true to go on from the last complete checkpoint, if there is one."
        ) from error


def is_full_disk(error: Exception, folder: str) -> bool:
    if getattr(error, "errno", None) in FULL_DISK or "No space left" in str(error):
        return True
    # torch.save() says only that a write has failed, or that the file is shorter than what was written.
    is_of_torch = "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error)
    return is_of_torch and shutil.disk_usage(folder).free < NEARLY_NOTHING


@contextmanager
def ended_process_errors(training: "TrainingArguments") -> Iterator[None]:
    """Turns the end of another process of a distributed run into one sentence.

    This process learns of it in two ways: a collective raises an error, and the launcher sends SIGTERM. Either may
    come first, or while the other is being handled.
    """
    from torch.distributed import DistError

    if training.world_size == 1:
        yield
        return

    def end(reason: str, error: Exception | None = None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the sentence has yet to be printed
        raise TrainingError(
            f"Process {training.process_index} of {training.world_size} ends, because another one has ended or does "
            f"not answer ({reason}); see the messages of the others, and pass resume_from_checkpoint=true to go on "
            "from the last complete checkpoint, if there is one."
        ) from error

    before = signal.signal(signal.SIGTERM, lambda *_: end("the launcher has sent SIGTERM"))
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, DistError) or "gloo" in str(error):  # gloo raises plain RuntimeErrors
            end(str(error).partition(". ")[0], error)
        raise
    else:  # after an error this process ends
        signal.signal(signal.SIGTERM, before)

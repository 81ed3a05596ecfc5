"""Says in one sentence that another process of a run on several processes has ended."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import DistError

from wedlm.training.arguments import WeDLMTrainingArguments
from wedlm.training.errors import TrainingError


@contextmanager
def ended_processes(training: WeDLMTrainingArguments) -> Iterator[None]:
    """Turns the end of another process into one sentence.

    This process learns of it in two ways: a collective raises an error, and the launcher sends SIGTERM. Either may
    come first, or while the other is being handled.
    """
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

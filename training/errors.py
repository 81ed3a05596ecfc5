"""The error that training raises for data, arguments or a tokenizer that it cannot work with."""

from collections.abc import Iterator
from contextlib import contextmanager


class TrainingError(ValueError):
    """Data, an argument or a tokenizer that training cannot work with; the message is one sentence with the remedy."""


@contextmanager
def as_training_errors() -> Iterator[None]:
    """Turns the errors of transformers, PEFT and the collator into a TrainingError with the same words."""
    try:
        yield
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        raise TrainingError(" ".join(str(error).split())) from error

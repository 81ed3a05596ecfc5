"""The error that everything about checkpoints raises, and the words of another error inside its sentence."""

import textwrap


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, converted or written: one sentence with the remedy, shown as it is."""


def one_line(error: object) -> str:
    """The words of another error, short enough for the middle of a sentence."""
    if "trust_remote_code" in str(error):  # which transformers advises
        return "it needs code of its own, which is never run"
    return textwrap.shorten(str(error), 300).rstrip(".")

"""MODEL and the prompts of a command line; a file without torch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from wedlm.checkpoints.new_folder import is_checkpoint
from wedlm.commands.shared_options import GenerationOptions

MOVED = "MODEL is the first argument since 0.3.0; the old form of this call works in 0.3 alone."


def model_and_prompts(
    words: list[str], options: GenerationOptions, most: int | None
) -> tuple[GenerationOptions, list[str]]:
    """Divides words into MODEL, which the options get, and at most `most` prompts; a single word is a prompt."""
    prompts = words
    if options.model != GenerationOptions.model:
        print(MOVED, file=sys.stderr)
    elif len(words) > 1 and " " in words[0] and not Path(words[0]).exists() and most is None:
        print(MOVED, file=sys.stderr)  # several prompts for the demo checkpoint
    elif len(words) > 1:
        options, prompts = replace(options, model=words[0]), words[1:]
    elif words[0] and is_checkpoint(Path(words[0])):
        raise ValueError(f"{words[0]} is a checkpoint, and no PROMPT follows it; give one.")
    if most is not None and len(prompts) > most:
        raise ValueError(
            f"{prompts[1]!r} follows the prompt {prompts[0]!r}, and this command takes one; put quotes around a "
            "prompt."
        )
    return options, [read_prompt(prompt) for prompt in prompts]


@contextmanager
def text_of_standard_input() -> Iterator[None]:
    """Turns bytes that are no text into a sentence that names standard input."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"Standard input is not UTF-8 ({error}); convert it, such as with iconv.") from error


def read_prompt(prompt: str) -> str:
    """The prompt of the command line, where - stands for standard input."""
    if prompt == "-":
        with text_of_standard_input():
            prompt = "" if sys.stdin is None else sys.stdin.read().removesuffix("\n")
    if not prompt.strip():
        raise ValueError("The prompt is empty; give it some text.")
    if any("\ud800" <= char <= "\udfff" for char in prompt):
        raise ValueError(f"The prompt {prompt!r} is not UTF-8; convert it, or read it from standard input.")
    return prompt

"""Options and prompts that several commands share, and the checks of their values; a file without torch."""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Self, get_args

import typer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.new_folder import is_checkpoint
from wedlm.checkpoints.whole_file import is_ordinary
from wedlm.generation.parameters import DEFAULTS, READS, check_parameters

MOVED = "MODEL is the first argument since 0.4.0; the old form of this call works in 0.4 alone."


def option(help: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, **settings)


def setting(help: str) -> Any:
    """An option of decoding or sampling."""
    return typer.Option(help=help, rich_help_panel="Decoding", show_default=False)


MODEL_HELP, DEMO = "A checkpoint: a folder, or a name on the Hub.", "the demo checkpoint"
Model = Annotated[str, typer.Argument(help=MODEL_HELP, metavar="MODEL", show_default=DEMO)]
Source = Annotated[str, typer.Argument(help=MODEL_HELP)]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    option("The dtype of the weights; auto keeps the dtype on disk.", rich_help_panel="Model"),
]
Device = Annotated[
    str | None,
    option("The device, such as cpu or cuda:0; by default the GPU if there is one.", rich_help_panel="Model"),
]
OverwriteCheckpoint = Annotated[bool, option("Replace OUT if it is a checkpoint.", "--overwrite")]
OverwriteFile = Annotated[bool, option("Replace FILE.", "--overwrite")]
OutFile = Annotated[
    Path | None,
    option("The file for all numbers; by default a new one with the name of the command.", metavar="FILE"),
]


@dataclass(frozen=True)
class DecodingOptions:
    """The parameters of decoding; None leaves the choice to the checkpoint."""

    decoding: Annotated[str | None, setting("The decoding: streaming, verified, blockwise or autoregressive.")] = None
    window_size: Annotated[
        int | None,
        setting("Slots that a pass decides; by default the checkpoint's number, or else 16, or 8 on a CPU."),
    ] = None
    entropy_threshold: Annotated[
        str | None,
        setting("Fill slots whose entropy in nats is below this number; none fills one slot per forward pass."),
    ] = None
    distance_penalty: Annotated[
        float | None, setting("Add this number to the entropy for each slot of distance from the first open slot.")
    ] = None
    acceptance_ratio: Annotated[
        float | None,
        setting("Accept a draft of verified decoding if its probability is at least this share of the best token's."),
    ] = None
    query_cost: Annotated[
        float | None,
        setting("Cost of one more token in a verified pass, as a share of a pass with a single token."),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of `generate()` that are given."""
        given = {name: getattr(self, name) for name in DEFAULTS if getattr(self, name) is not None}
        if self.entropy_threshold is not None:
            given["entropy_threshold"] = read_threshold(self.entropy_threshold)
        return given


def repeated(annotation: Any) -> Any:
    """The option of this annotation, as one that may be given several times."""
    kind, shown = get_args(annotation)
    shown = copy(shown)
    shown.help = f"{shown.help.removesuffix('.')}; may be given again."
    return Annotated[list[get_args(kind)[0]] | None, shown]


RepeatedDecodingOptions = make_dataclass(
    "RepeatedDecodingOptions",
    [(field.name, repeated(field.type), None) for field in fields(DecodingOptions)],
)


@dataclass(frozen=True)
class GenerationOptions(DecodingOptions):
    """Options of the commands that generate text."""

    model: Annotated[str, typer.Option("--model", hidden=True)] = str(DEMO_FOLDER)  # an argument since 0.3
    dtype: Dtype = "auto"
    device: Device = None
    max_new_tokens: Annotated[
        int, option("The largest number of tokens of an answer.", rich_help_panel="Decoding")
    ] = 256
    temperature: Annotated[float, setting("Sample tokens at this temperature; 0 chooses the most likely token.")] = 0.0
    top_p: Annotated[
        float | None, setting("Sample from the most likely tokens that together have this probability.")
    ] = None
    seed: Annotated[int | None, setting("The seed for sampling; the same seed gives the same text.")] = None

    def with_decoding(self, decoding: str) -> Self:
        """The same options for another decoding than the one that is named, which may read fewer of them."""
        if decoding == self.decoding:
            return self
        unread = DEFAULTS.keys() - {"decoding", *READS[decoding]}
        return replace(self, decoding=decoding, **dict.fromkeys(unread))

    def arguments(self) -> dict[str, Any]:
        """The arguments of `generate()`; an option that it would check too late is checked here."""
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"--temperature {self.temperature} is not a temperature; give 0 or a finite number.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p {self.top_p} is not a share; give a number above 0 and at most 1.")
        if self.top_p is not None and self.temperature == 0:
            raise ValueError(f"--top-p {self.top_p} needs draws, and there are none; give a --temperature above 0.")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed {self.seed} is not a seed; give a whole number from 0 to 2**63 - 1.")
        if self.max_new_tokens < 1:
            raise ValueError(f"--max-new-tokens {self.max_new_tokens} leaves no room for an answer; give 1 or more.")
        arguments = super().arguments()
        if self.temperature:
            arguments["temperature"] = self.temperature
        if self.top_p is not None:
            arguments["top_p"] = self.top_p
        return arguments | {"max_new_tokens": self.max_new_tokens, "do_sample": self.temperature != 0}


def check_call(model: str, arguments: dict[str, Any]) -> None:
    """Refuses arguments of generate() that are wrong, and a MODEL that cannot be loaded, before torch is imported."""
    from wedlm.checkpoints.resolve import wedlm_folder

    check_parameters(SimpleNamespace(**DEFAULTS | arguments))
    wedlm_folder(model, with_weights=False, or_stock=True)


def read_threshold(text: str) -> float | None:
    """The value of --entropy-threshold, where none is None."""
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--entropy-threshold {text} is neither a number of nats nor none.") from None


def new_out_file(given: Path | None, default: str, overwrite: bool) -> Path:
    """The file for all numbers; by default eval.json, say, or else eval-2.json and so on, so that none is replaced."""
    file, number = given or Path(default), 1
    while given is None and not overwrite and file.exists():
        number += 1
        file = Path(default).with_stem(f"{Path(default).stem}-{number}")
    check_out_file("--out", file, overwrite)
    return file


def check_out_file(option: str, file: Path, overwrite: bool) -> None:
    """Refuses a file that could not be written later, or that exists and may not be replaced."""
    where = file.resolve().parent if is_ordinary(file) else file
    if file.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        raise ValueError(
            f"{option} {file} cannot be written; give the name of a file in a folder that you may write to."
        )
    if file.exists() and not overwrite:
        raise ValueError(f"{option} {file} exists; choose another file, or pass --overwrite.")


# --- MODEL and the prompts of a command line ---


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

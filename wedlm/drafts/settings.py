"""The settings of a run of `wedlm adapt`, which are its options; a file without torch and the Hub's client."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from wedlm.drafts.prompts import most_prompts
from wedlm.training.data_options import MAX_WINDOW

FILES = ("train", "held_out")  # of answers: the names of files of JSON Lines, and of the fields of Tasks


@dataclass(frozen=True)
class AdaptSettings:
    """The options of `wedlm adapt`; docs/reference/adapt.md says what each of them does."""

    model: Annotated[str, Argument(help="A checkpoint: a folder, or a name on the Hub.")]
    prompts: Annotated[
        Path | None,
        Option(help="JSON Lines with prompts like those you will use; by default the package's own.", metavar="FILE"),
    ] = None
    answers: Annotated[
        Path | None,
        Option(help="JSON Lines with prompts and MODEL's own answers, instead of --prompts.", metavar="FILE"),
    ] = None
    measure_also: Annotated[
        Path | None, Option(help="JSON Lines with prompts that are only measured.", metavar="FILE")
    ] = None
    num_prompts: Annotated[int, Option(help="Number of the package's own prompts.")] = 3000
    num_held_out: Annotated[int, Option(help="Number of prompts that are measured and not trained on.")] = 60
    max_new_tokens: Annotated[int, Option(help="The largest number of tokens of an answer.")] = 256
    temperature: Annotated[float, Option(help="The temperature of the answers; 0 is greedy.")] = 0.0
    minutes: Annotated[float, Option(help="How long the adapter is trained.")] = 60.0
    steps: Annotated[int | None, Option(help="The number of optimizer steps, instead of --minutes.")] = None
    rank: Annotated[int, Option(help="The rank of the adapter.")] = 16
    window_size: Annotated[int, Option(help="The most MASKs of a group in training.")] = 8
    mask_shift: Annotated[
        bool,
        Option(
            "--mask-shift/--no-mask-shift",
            help="Train each MASK to predict the next token, or that of its place.",
        ),
    ] = True
    learning_rate: Annotated[float, Option(help="The highest learning rate.")] = 4e-4
    max_length: Annotated[int, Option(help="Tokens of a training row; longer samples are cut.")] = 1024
    batch_size: Annotated[int, Option(help="Number of prompts that are answered at a time.")] = 32
    start_from: Annotated[
        Path | None, Option(help="An adapter of MODEL with the same rank, to train further.", metavar="FOLDER")
    ] = None
    seed: Annotated[int, Option(help="The seed of all random choices.")] = 0
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"], Option(help="The dtype of MODEL for answers and training.")
    ] = "auto"
    device: Annotated[str | None, Option(help="The device, cpu or cuda; by default the GPU if there is one.")] = None

    def __post_init__(self):
        if self.prompts is not None and self.answers is not None:
            raise ValueError(
                f"--prompts {self.prompts} and --answers {self.answers} exclude each other; the answers bring their "
                "own prompts, so leave out --prompts."
            )
        for name, least, most in (
            ("num_prompts", 1, most_prompts(False)),
            ("num_held_out", 1, most_prompts(True)),
            ("max_new_tokens", 2, inf),
            ("steps", 1, inf),
            ("rank", 1, inf),
            ("window_size", 2, MAX_WINDOW),
            ("max_length", 16, inf),
            ("batch_size", 1, inf),
            ("seed", 0, 2**32 - 1),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                fitting = f"{least} or more" if value < least else f"{most} or less"
                raise ValueError(
                    f"{option(name)} {value} is too {'small' if value < least else 'large'}; pass {fitting}."
                )
        for name in ("minutes", "learning_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{option(name)} {getattr(self, name)} is not a number above 0; pass one.")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"--temperature {self.temperature} is negative or no number; pass 0 or more.")
        if self.device is not None and ":" in self.device:
            raise ValueError(
                f"--device {self.device} names one of several GPUs, but training takes those that it sees; set "
                "CUDA_VISIBLE_DEVICES, and pass --device cuda."
            )


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def work_folder(out: Path) -> Path:
    """The folder beside OUT with everything that a stopped run goes on from."""
    return out.with_name(f"{out.name}.work")

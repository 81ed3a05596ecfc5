"""What the commands that generate text have in common: one object, and an option for each of its fields."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any, Literal

import typer

from wedlm.checkpoints.demo_folder import DEMO_FOLDER


def option(help: str, panel: str = "Decoding", show_default: bool | str = False) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, show_default=show_default)


Debug = Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    option("What the weights become; auto leaves them as they are on disk.", "Model", show_default=True),
]
Device = Annotated[str | None, option("Such as cpu or cuda:0; otherwise the GPU, if there is one.", "Model")]
Decoding = Annotated[str | None, option("How to decode: streaming, verified, blockwise or autoregressive.")]
WindowSize = Annotated[
    int | None, option("Slots behind the committed text; if neither this nor the checkpoint says, 16, on a CPU 8.")
]
EntropyThreshold = Annotated[
    str | None, option("In nats; slots with less are filled. none fills one slot per forward.")
]
DistancePenalty = Annotated[float | None, option("Added to the entropy for each slot of distance.")]


@dataclass(frozen=True)
class Settings:
    """Options of a command; None leaves it to the checkpoint."""

    model: Annotated[
        str, option("A WeDLM checkpoint: a folder, or a name on the Hub.", "Model", show_default="the demo checkpoint")
    ] = str(DEMO_FOLDER)
    dtype: Dtype = "auto"
    device: Device = None
    decoding: Decoding = None
    window_size: WindowSize = None
    entropy_threshold: EntropyThreshold = None
    distance_penalty: DistancePenalty = None
    max_new_tokens: Annotated[int, option("The most tokens of an answer.", show_default=True)] = 256
    temperature: Annotated[float, option("Above 0 tokens are drawn; at 0 the most likely is taken.")] = 0.0
    top_p: Annotated[float | None, option("Draw from the likeliest tokens that make up this share.")] = None
    seed: Annotated[int | None, option("Of the draws; the same seed gives the same text.")] = None
    debug: Debug = False

    def arguments(self) -> dict[str, Any]:
        """For generate()."""
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"--temperature {self.temperature} is no temperature; give 0 or a finite number.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p {self.top_p} is no share; give a number above 0 and at most 1.")
        if self.top_p is not None and self.temperature == 0:
            raise ValueError(f"--top-p {self.top_p} needs draws, and there are none; give a --temperature above 0.")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed {self.seed} is no seed; give a whole number from 0 to 2**63 - 1.")
        given = {
            "decoding": self.decoding,
            "window_size": self.window_size,
            "distance_penalty": self.distance_penalty,
            "temperature": self.temperature or None,
            "top_p": self.top_p,
        }
        arguments = {name: value for name, value in given.items() if value is not None}
        if self.entropy_threshold is not None:
            arguments["entropy_threshold"] = read_threshold(self.entropy_threshold)
        return arguments | {"max_new_tokens": self.max_new_tokens, "do_sample": self.temperature != 0}


def read_threshold(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--entropy-threshold {text} is neither a number of nats nor none.") from None


def with_settings(command: Callable) -> Callable:
    """The command gets an option for each field of Settings, and all of them as its argument `settings`."""
    own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "settings"]
    common = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Settings)
    ]

    @wraps(command)
    def run(**values: Any) -> None:
        settings = Settings(**{parameter.name: values.pop(parameter.name) for parameter in common})
        command(**values, settings=settings)

    run.__signature__ = inspect.Signature([*own, *common])
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *common]}
    return run

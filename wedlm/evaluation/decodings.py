"""Decodings to compare: arguments of generate() by a label that names what differs from the defaults."""

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from wedlm.generation.parameters import (
    DEFAULTS,
    READS,
    check_parameters,
    default_query_cost,
    default_window_size,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BASELINE = "autoregressive"
WORDS = {
    "window_size": "window",
    "entropy_threshold": "threshold",
    "distance_penalty": "penalty",
    "acceptance_ratio": "ratio",
    "query_cost": "query cost",
}


def is_exact(arguments: dict[str, Any]) -> bool:
    """Whether a decoding writes the baseline's text, up to rounding."""
    return arguments["decoding"] == BASELINE or (
        arguments["decoding"] == "verified" and arguments.get("acceptance_ratio", 1) == 1
    )


def label_of(arguments: dict[str, Any]) -> str:
    """label_of({"decoding": "streaming", "entropy_threshold": 0.1}) == "streaming, threshold 0.1"."""
    decoding = arguments["decoding"]
    settings = [f"{WORDS[name]} {arguments[name]}".lower() for name in READS[decoding] if name in arguments]
    return ", ".join([decoding, *settings])


def combinations(decodings: list[str], **values: list | None) -> dict[str, dict[str, Any]]:
    """Returns arguments of `generate()` by label: each decoding with each combination of the parameters it reads.

    combinations(["autoregressive", "streaming"], entropy_threshold=[0.1, 0.4])
    {"autoregressive": {...}, "streaming, threshold 0.1": {...}, "streaming, threshold 0.4": {...}}
    """
    made = {}
    for decoding in decodings:
        names = [name for name in READS.get(decoding, ()) if values.get(name)]
        for chosen in product(*(values[name] for name in names)):
            arguments = {"decoding": decoding, **dict(zip(names, chosen, strict=True))}
            check_decoding(arguments)
            made[label_of(arguments)] = arguments
    return made


def check_decoding(arguments: dict[str, Any]) -> None:
    """Refuses an unknown decoding, wrong values, and parameters that the decoding does not read."""
    decoding = arguments.get("decoding")
    check_parameters(SimpleNamespace(**DEFAULTS | {**arguments, "decoding": decoding}))
    for name in arguments.keys() - {"decoding", *READS[decoding]}:
        raise ValueError(
            f"{decoding} decoding does not read {name!r}; leave it out (it reads "
            f"{', '.join(READS[decoding]) or 'no parameters'})."
        )


def with_defaults(arguments: dict[str, Any], model: "PreTrainedModel") -> dict[str, Any]:
    """Adds what the decoding reads and `arguments` lacks: the values of the checkpoint, or else of the device."""
    defaults = model.generation_config
    filled = {
        name: arguments.get(name, getattr(defaults, name)) for name in ("decoding", *READS[arguments["decoding"]])
    }
    for name, default in (("window_size", default_window_size), ("query_cost", default_query_cost)):
        if name in filled and filled[name] is None:
            filled[name] = default(model.device)
    return filled

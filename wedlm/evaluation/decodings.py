"""Ways to decode, by a label that says what is special about each."""

from itertools import product
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from wedlm.generation.policy import default_window_size
from wedlm.generation.support import DECODINGS, check_parameters

BASELINE = "autoregressive"
EXACT = (BASELINE, "verified")  # the baseline's text, but for rounding
READS = {  # which of the other three parameters a decoding reads
    "streaming": ("window_size", "entropy_threshold", "distance_penalty"),
    "blockwise": ("window_size", "entropy_threshold", "distance_penalty"),
    "verified": ("window_size",),
    BASELINE: (),
}
WORDS = {"window_size": "window", "entropy_threshold": "threshold", "distance_penalty": "penalty"}


def label_of(arguments: dict[str, Any]) -> str:
    """label_of({"decoding": "streaming", "entropy_threshold": 0.1}) == "streaming, threshold 0.1" """
    decoding = arguments["decoding"]
    said = [f"{WORDS[name]} {arguments[name]}".lower() for name in READS[decoding] if name in arguments]
    return ", ".join([decoding, *said])


def combinations(
    decodings: list[str],
    window_size: list[int | None] | None = None,
    entropy_threshold: list[float | None] | None = None,
    distance_penalty: list[float] | None = None,
) -> dict[str, dict[str, Any]]:
    """Each decoding with each combination of the values given for what it reads, by label.

    What is not given is left out.

    combinations(["autoregressive", "streaming"], entropy_threshold=[0.1, 0.4])
    {"autoregressive": {...}, "streaming, threshold 0.1": {...}, "streaming, threshold 0.4": {...}}
    """
    given = {
        "window_size": window_size,
        "entropy_threshold": entropy_threshold,
        "distance_penalty": distance_penalty,
    }
    made = {}
    for decoding in decodings:
        if decoding not in DECODINGS:
            raise ValueError(f"--decoding {decoding} is unknown; choose of {', '.join(DECODINGS)}.")
        names = [name for name in READS[decoding] if given[name]]
        for values in product(*(given[name] for name in names)):
            arguments = {"decoding": decoding, **dict(zip(names, values, strict=True))}
            made[label_of(arguments)] = arguments
    return made


def check(arguments: dict[str, Any], where: str) -> None:
    decoding = arguments.get("decoding")
    if decoding not in DECODINGS:
        raise ValueError(f"{where}: decoding {decoding!r} is unknown; choose of {', '.join(DECODINGS)}.")
    for name in arguments.keys() - {"decoding", *READS[decoding]}:
        raise ValueError(
            f"{where}: {decoding} decoding reads no {name!r}; it reads {', '.join(READS[decoding]) or 'nothing'}."
        )


def whole(arguments: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """`arguments` with the rest that the decoding reads, as the checkpoint or the device says; refuses what cannot be.

    whole({"decoding": "verified"}, model) == {"decoding": "verified", "window_size": 8}    # on a CPU
    """
    generation_config = model.generation_config
    names = ("decoding", *READS[arguments["decoding"]])
    filled = {name: arguments.get(name, getattr(generation_config, name)) for name in names}
    checked = GenerationConfig()
    for name in ("decoding", *WORDS):
        setattr(checked, name, filled.get(name, getattr(generation_config, name)))
    check_parameters(checked)
    if "window_size" in filled and filled["window_size"] is None:
        filled["window_size"] = default_window_size(model.device)
    return filled

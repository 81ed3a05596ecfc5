"""Ways to decode: arguments of generate() by a label that names what differs from the defaults."""

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from wedlm.generation.parameters import DECODINGS, READS, check_parameters, default_query_cost, default_window_size

if TYPE_CHECKING:  # transformers imports torch, and a recipe is checked before that
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
    """Returns the label of a decoding.

    label_of({"decoding": "streaming", "entropy_threshold": 0.1}) == "streaming, threshold 0.1"
    """
    decoding = arguments["decoding"]
    settings = [f"{WORDS[name]} {arguments[name]}".lower() for name in READS[decoding] if name in arguments]
    return ", ".join([decoding, *settings])


def combinations(
    decodings: list[str],
    window_size: list[int | None] | None = None,
    entropy_threshold: list[float | None] | None = None,
    distance_penalty: list[float] | None = None,
    acceptance_ratio: list[float] | None = None,
    query_cost: list[float] | None = None,
) -> dict[str, dict[str, Any]]:
    """Returns arguments of `generate()` by label: each decoding with each combination of the parameters it reads.

        combinations(["autoregressive", "streaming"], entropy_threshold=[0.1, 0.4])
        {"autoregressive": {...}, "streaming, threshold 0.1": {...}, "streaming, threshold 0.4": {...}}

    Args:
        decodings (`list[str]`):
            Names of decodings.
        window_size (`list[int | None]`, *optional*):
            Values to try; the arguments have no `window_size` without them. The others work in the same way.
        entropy_threshold (`list[float | None]`, *optional*):
            Values to try.
        distance_penalty (`list[float]`, *optional*):
            Values to try.
        acceptance_ratio (`list[float]`, *optional*):
            Values to try.
        query_cost (`list[float]`, *optional*):
            Values to try.
    """
    given = {
        "window_size": window_size,
        "entropy_threshold": entropy_threshold,
        "distance_penalty": distance_penalty,
        "acceptance_ratio": acceptance_ratio,
        "query_cost": query_cost,
    }
    made = {}
    for decoding in decodings:
        if decoding not in DECODINGS:
            raise ValueError(f"--decoding {decoding} is unknown; choose one of {', '.join(DECODINGS)}.")
        names = [name for name in READS[decoding] if given[name]]
        for values in product(*(given[name] for name in names)):
            arguments = {"decoding": decoding, **dict(zip(names, values, strict=True))}
            made[label_of(arguments)] = arguments
    return made


def check_decoding(arguments: dict[str, Any], where: str) -> None:
    """Refuses an unknown decoding, and parameters that the decoding does not read; `where` starts the message."""
    decoding = arguments.get("decoding")
    if decoding not in DECODINGS:
        raise ValueError(f"{where}: decoding {decoding!r} is unknown; choose one of {', '.join(DECODINGS)}.")
    for name in arguments.keys() - {"decoding", *READS[decoding]}:
        raise ValueError(
            f"{where}: {decoding} decoding does not read {name!r}; leave it out (it reads "
            f"{', '.join(READS[decoding]) or 'no parameters'})."
        )


def whole(arguments: dict[str, Any], model: "PreTrainedModel") -> dict[str, Any]:
    """Adds the parameters that the decoding reads and `arguments` lacks, and refuses impossible values.

        whole({"decoding": "blockwise"}, model)["window_size"] == 8    # on a CPU

    Args:
        arguments (`dict[str, Any]`):
            Arguments of `generate()`.
        model (`PreTrainedModel`):
            Its generation config has the missing values. Its device decides those that are None by default.
    """
    generation_config = model.generation_config
    names = ("decoding", *READS[arguments["decoding"]])
    filled = {name: arguments.get(name, getattr(generation_config, name)) for name in names}
    checked = {name: filled.get(name, getattr(generation_config, name)) for name in ("decoding", *WORDS)}
    check_parameters(SimpleNamespace(**checked))
    for name, default in (("window_size", default_window_size), ("query_cost", default_query_cost)):
        if name in filled and filled[name] is None:
            filled[name] = default(model.device)
    return filled

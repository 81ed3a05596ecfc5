"""The parameters of decoding; a file without torch, so that wrong values are refused before torch is there."""

from collections.abc import Callable
from typing import Any

READS = {  # the parameters that each decoding reads
    "streaming": ("window_size", "entropy_threshold", "distance_penalty"),
    "blockwise": ("window_size", "entropy_threshold", "distance_penalty"),
    "verified": ("window_size", "query_cost", "acceptance_ratio"),
    "autoregressive": (),
}
DECODINGS = tuple(READS)
AS_IT_IS = ("verified", "autoregressive")  # of a model that no training has taught to fill in MASK
# None stands for `default_window_size` and `default_query_cost`.
DEFAULTS = {
    "decoding": "streaming",
    "window_size": None,
    "entropy_threshold": 0.4,
    "distance_penalty": 0.02,
    "acceptance_ratio": 1.0,
    "query_cost": None,
}
LARGEST = 1e30  # what is computed in float32 stays finite


def default_window_size(device: Any) -> int:
    """The window_size of a checkpoint that names none.

    On a CPU more queries cost more arithmetic; a GPU does it while it reads the weights (docs/reference/generate.md).
    """
    return 8 if device.type == "cpu" else 16


def decoding_of(generation_config: Any, settings: dict, model: Any) -> str:
    """The decoding that generate() takes with these settings."""
    default = getattr(model.generation_config, "decoding", "verified")
    return settings.get("decoding", getattr(generation_config, "decoding", default))


def says_shifted(config: Any) -> bool:
    """Whether a config of a WeDLM says that MASKs, its own or those of its draft adapter, predict the next token."""
    return config.mask_shift or (config.drafts or {}).get("mask_shift", False)


def defaults_of(config: Any) -> dict[str, Any]:
    """The parameters of a WeDLM that names none; one with `mask_shift` offers no streaming, and verifies."""
    is_ours = hasattr(config, "mask_shift")  # a config of another class is refused later
    return DEFAULTS | ({"decoding": "verified"} if is_ours and says_shifted(config) else {})


def says_trained(config: Any) -> bool:
    """Whether the config of a WeDLM says that it was trained to fill in MASK."""
    return config.converted_from is None or config.mask_trained


def decodings_with(is_trained: bool, has_drafts: bool) -> tuple[str, ...]:
    """The decodings that a WeDLM offers.

    A converted model may have been trained without a word of it in its config, so it offers all of them (and
    `warn_of_call` warns). With a draft adapter it is one that was made for verified decoding.
    """
    return DECODINGS if is_trained or not has_drafts else AS_IT_IS


def default_query_cost(device: Any) -> float:
    """The query_cost of a checkpoint that names none.

    On a CPU a fused forward of 8 tokens costs little more than one of a single token, one of 32 three to four times as
    much; a GPU waits for the weights in all of them (docs/reference/generate.md).
    """
    return 0.1 if device.type == "cpu" else 0.0


def is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


def is_share(value: Any) -> bool:
    return is_amount(value) and 0 < value <= 1


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def or_none(is_right: Callable) -> Callable:
    return lambda value: value is None or is_right(value)


# What the value of each parameter has to be: a test of it, its name, and the remedy.
VALUES: dict[str, tuple[Callable, str, str]] = {
    "window_size": (or_none(is_count), "a number of slots", "an integer of 1 or more, or to None for the default"),
    "entropy_threshold": (
        or_none(is_amount), "an entropy", "a number of nats from 0 to 1e30, or to None to fill one slot per forward",
    ),
    "distance_penalty": (is_amount, "a penalty", "a number from 0 to 1e30"),
    "query_cost": (or_none(is_amount), "a share of a forward", "a number from 0 to 1e30, or to None for the default"),
    "acceptance_ratio": (is_share, "a share", "a number above 0 and at most 1"),
    "prompt_lookup_num_tokens": (or_none(is_count), "a number of drafts", "0 for none, or to a positive integer"),
    "max_matching_ngram_size": (or_none(is_count), "a number of tokens", "an integer of 1 or more, or leave it out"),
    "prefill_chunk_size": (or_none(is_count), "a number of tokens", "an integer of 1 or more, or leave it out"),
}  # fmt: skip


def check_values(config: Any, *names: str) -> None:
    """Refuses parameters of a generation config whose value is not allowed."""
    for name in names:
        is_right, kind, remedy = VALUES[name]
        if not is_right(value := getattr(config, name)):
            raise ValueError(f"{name}={value!r} is not {kind}; set it to {remedy}.")


def check_parameters(config: Any) -> None:
    if config.decoding not in DECODINGS:
        raise ValueError(f"decoding={config.decoding!r} is unknown; choose one of {', '.join(map(repr, DECODINGS))}.")
    check_values(config, *(name for name in DEFAULTS if name in VALUES))
    if config.acceptance_ratio < 1 and config.decoding == "verified" and getattr(config, "do_sample", False):
        raise ValueError(
            f"acceptance_ratio={config.acceptance_ratio!r} accepts drafts without drawing, and do_sample=True asks "
            "for draws; set acceptance_ratio to 1.0, or do_sample to False."
        )

"""The parameters of decoding; a file without torch, so that wrong values are refused before torch is there."""

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


def is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_parameters(config: Any) -> None:
    if config.decoding not in DECODINGS:
        raise ValueError(f"decoding={config.decoding!r} is unknown; choose one of {', '.join(map(repr, DECODINGS))}.")
    if config.window_size is not None and not is_count(config.window_size):
        raise ValueError(
            f"window_size={config.window_size!r} is not a number of slots; set it to an integer of 1 or more, or to "
            "None for the default."
        )
    if config.entropy_threshold is not None and not is_amount(config.entropy_threshold):
        raise ValueError(
            f"entropy_threshold={config.entropy_threshold!r} is not an entropy; set it to a number of nats from 0 to "
            "1e30, or to None to fill one slot per forward."
        )
    if not is_amount(config.distance_penalty):
        raise ValueError(
            f"distance_penalty={config.distance_penalty!r} is not a penalty; set it to a number from 0 to 1e30."
        )
    if config.query_cost is not None and not is_amount(config.query_cost):
        raise ValueError(
            f"query_cost={config.query_cost!r} is not a share of a forward; set it to a number from 0 to 1e30, or to "
            "None for the default."
        )
    ratio = config.acceptance_ratio
    if not is_amount(ratio) or not 0 < ratio <= 1:
        raise ValueError(f"acceptance_ratio={ratio!r} is not a share; set it to a number above 0 and at most 1.")
    if ratio < 1 and config.decoding == "verified" and getattr(config, "do_sample", False):
        raise ValueError(
            f"acceptance_ratio={ratio!r} accepts drafts without drawing, and do_sample=True asks for draws; set "
            "acceptance_ratio to 1.0, or do_sample to False."
        )

"""The fingerprint by which a draft adapter knows its base, the model that it was trained on."""

from collections.abc import Iterable
from hashlib import sha256

import torch
from transformers import PreTrainedModel

ROWS = 4  # of a matrix in each layer


def fingerprint(model: PreTrainedModel) -> str | None:
    """Returns a hash of the signs of some weights in each layer, which are the same in every dtype.

    Args:
        model (`PreTrainedModel`): A `WeDLMForCausalLM`.

    Returns:
        `str`, *optional*: The hash; None if weights are quantized, or are not in memory.
    """
    weights = [getattr(layer.mlp.down_proj, "weight", None) for layer in model.get_decoder().layers]
    if any(weight is None or weight.is_meta or not weight.is_floating_point() for weight in weights):
        return None
    return hash_of_signs(weight[:ROWS].detach().cpu() for weight in weights)


def hash_of_signs(rows: Iterable[torch.Tensor]) -> str:
    """Returns the fingerprint of a model whose layers have these first `ROWS` rows of `down_proj`."""
    signs = torch.cat([each.flatten().signbit() for each in rows])
    return sha256(bytes(signs.tolist())).hexdigest()[:16]


def check_base(present: str | None, recorded: str | None) -> None:
    """Raises a ValueError if the fingerprint of a model is not the one that an adapter recorded."""
    if None not in (recorded, present) and recorded != present:
        raise ValueError(
            f"base_fingerprint={recorded!r} of the draft adapter is not that of this model, {present!r}, so the "
            "adapter was trained on other weights; load it into its own base, or train one for this model."
        )

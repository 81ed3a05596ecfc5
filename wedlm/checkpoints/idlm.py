"""I-DLM's checkpoints (arXiv 2604.11035): a Qwen3 whose MASKs predict the token behind them, named as SDAR's."""

from typing import TYPE_CHECKING

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

if TYPE_CHECKING:
    from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig

SDAR = "sdar"
CAUSAL = ("yifanyu/I-DLM-8B", "yifanyu/I-DLM-32B")  # whose configs do not tell them from SDAR's
# Fields on their code and on the training, which keeps no cache.
NOT_TAKEN = (
    "architectures", "auto_map", "attn_implementation", "block_size", "debug", "fuse_cross_entropy", "use_cache",
    "use_regular_causal",
)  # fmt: skip


def wedlm_fields(fields: dict, name: object, is_causal: bool = False) -> dict:
    """The config.json of a WeDLM with the same weights; `is_causal` if the user says so.

    The blocks of SDAR's own models attend in both directions, and no decoding of this package can do that.
    """
    if not (is_causal or (value := fields.get("use_regular_causal")) or name in CAUSAL):
        raise CheckpointError(
            f"{name} is of model_type 'sdar' with use_regular_causal={value!r}, so its blocks may attend in both "
            "directions, which no decoding here does; if it is an I-DLM, set use_regular_causal to true in its "
            "config.json, or pass mask_shift=True to from_pretrained()."
        )
    if (bias := fields.get("attention_bias")) not in (None, False):
        raise CheckpointError(
            f"{name} has attention_bias={one_line(bias)}, a bias on the output projection too, and WeDLM has none "
            "there; start from a checkpoint without it."
        )
    taken = {field: value for field, value in fields.items() if field not in NOT_TAKEN}
    return taken | {"model_type": MODEL_TYPE, "qk_norm": True, "mask_shift": True}


class SDARConfig:
    """By it `AutoConfig` makes a `WeDLMConfig` of a config.json of model_type "sdar", if the model is causal."""

    model_type = SDAR

    @classmethod
    def from_dict(cls, config_dict: dict, mask_shift: bool = False, **kwargs) -> "WeDLMConfig":
        from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig

        name = kwargs.get("name_or_path") or config_dict.get("_name_or_path")
        return WeDLMConfig.from_dict(wedlm_fields(config_dict, name, mask_shift), **kwargs)

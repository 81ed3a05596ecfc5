"""I-DLM's checkpoints (arXiv 2604.11035): a Qwen3 whose MASKs predict the token behind them, named as SDAR's."""

from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

CAUSAL = ("yifanyu/I-DLM-8B", "yifanyu/I-DLM-32B")  # whose configs do not tell them from SDAR's
OLDER_FIELDS = ("rope_theta", "rope_scaling", "torch_dtype")  # which transformers reads and does not write any more


class SDARConfig(Qwen3Config):
    """What `AutoConfig` makes a `WeDLMConfig` of: a config.json of model_type "sdar", if its model attends causally.

    The blocks of SDAR's own models attend in both directions, and no decoding of this package can do that.
    """

    model_type = "sdar"

    @classmethod
    def from_dict(cls, config_dict: dict, **kwargs) -> WeDLMConfig:
        name = kwargs.get("name_or_path") or config_dict.get("_name_or_path")
        if not (config_dict.get("use_regular_causal") or kwargs.get("mask_shift") or name in CAUSAL):
            raise ValueError(
                f"{name} is of model_type 'sdar', whose blocks attend in both directions unless it is an I-DLM, and "
                "its config does not say so; pass mask_shift=True if it is one."
            )
        known = {*Qwen3Config().to_dict(), *OLDER_FIELDS, "mask_token_id"} - {
            "auto_map",
            "architectures",
            "model_type",
        }
        fields = {field: value for field, value in config_dict.items() if field in known}
        fields |= {"model_type": MODEL_TYPE, "mask_shift": True, "mask_trained": True}
        return WeDLMConfig.from_dict(fields, **{key: value for key, value in kwargs.items() if key != "mask_shift"})

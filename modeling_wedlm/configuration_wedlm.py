"""The configuration of WeDLM models."""

import os
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from wedlm.modeling_wedlm.hub_code import copy_code
from wedlm.modeling_wedlm.model_type import MODEL_TYPE


def check_model_type(model_type: str, name: object) -> None:
    """Raises a ValueError that names the checkpoint or class if its model_type is not WeDLM's."""
    if model_type != MODEL_TYPE:
        raise ValueError(
            f"{name} is of model_type {model_type!r}, but the WeDLM classes support only {MODEL_TYPE!r}; convert "
            "the checkpoint (`wedlm convert`, or convert_to_wedlm in Python), or load it with the Auto classes, whose "
            "generate() takes custom_generate=wedlm.verified."
        )


def check_config(config: Qwen3Config) -> None:
    """Raises a ValueError if no model can be built from the config.

    The config checks itself when it is made, and again here, because its fields can be set afterwards.
    """
    check_model_type(config.model_type, type(config).__name__)
    heads, key_value_heads = config.num_attention_heads, config.num_key_value_heads
    if min(heads, key_value_heads or 0) < 1 or heads % key_value_heads:
        raise ValueError(
            f"num_attention_heads={heads} is not a multiple of num_key_value_heads={key_value_heads}; every key-value "
            "head has to serve the same number of query heads, so correct one of the two in config.json."
        )
    if config.mask_token_id is not None and not 0 <= config.mask_token_id < config.vocab_size:
        raise ValueError(
            f"mask_token_id={config.mask_token_id} lies outside the vocabulary of {config.vocab_size} tokens; set it "
            "to the id of the tokenizer's MASK token, or to None if there is none."
        )


@strict
class WeDLMConfig(Qwen3Config):
    """Configuration of a WeDLM: that of Qwen3, with a MASK token and switches for the layers of Qwen2.5 and Llama.

    Args:
        mask_token_id (`int`, *optional*):
            The token that stands in the input for a position still to be predicted. A checkpoint without it (None)
            loads, and offers autoregressive decoding only.
        mask_row (`str`, *optional*):
            Where `convert_to_wedlm` found a row of the embedding for MASK: `"unused"` if it took a row that no token
            used, `"added"` if it appended one. The conversion back reads it.
        converted_from (`str`, *optional*):
            The `model_type` of the checkpoint before its conversion. The conversion back needs it, because some
            architectures have the same layers.
        mask_trained (`bool`, *optional*, defaults to `False`):
            Whether a converted checkpoint was trained to fill in MASK after its conversion.
        mask_shift (`bool`, *optional*, defaults to `False`):
            Whether a MASK predicts the next token, as every other token does and as in I-DLM, instead of the token of
            its own position. Such a model offers verified decoding and no streaming.
        drafts (`dict`, *optional*):
            The draft adapter in the checkpoint, `{"rank": 16, "modules": ["q_proj", ...]}`, with `"mask_shift": True`
            if its MASKs predict the next token. None if there is not an adapter.
        attention_bias (`bool`, *optional*, defaults to `False`):
            Whether the query, key and value projections have biases, as in Qwen2.5.
        qk_norm (`bool`, *optional*, defaults to `True`):
            Whether each query head and key head goes through RMSNorm, as in Qwen3.
        head_dim (`int`, *optional*, defaults to 128):
            The width of a head, which does not depend on `hidden_size`.

    All other arguments, and all defaults, are those of `Qwen3Config`. A Qwen2.5 is
    `WeDLMConfig(attention_bias=True, qk_norm=False, ...)`, a Llama or Mistral `WeDLMConfig(qk_norm=False, ...)`.
    """

    model_type = MODEL_TYPE

    mask_token_id: int | None = None
    mask_row: Literal["unused", "added"] | None = None
    converted_from: str | None = None
    mask_trained: bool = False
    mask_shift: bool = False
    qk_norm: bool = True
    drafts: dict | None = None

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        check_config(self)

    def require_mask_token_id(self) -> int:
        """Returns the id of the MASK token, or raises a ValueError if the checkpoint has none."""
        check_config(self)
        if self.mask_token_id is None:
            raise ValueError(
                "mask_token_id is None in the config of this checkpoint, but masked prediction needs a MASK token; "
                "set model.config.mask_token_id to the id of the token that the model was trained to fill in."
            )
        return self.mask_token_id

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs):
        config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        check_model_type(config_dict.get("model_type", MODEL_TYPE), pretrained_model_name_or_path)
        return config_dict, kwargs

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs):
        check_config(self)
        if not os.path.isfile(save_directory):  # transformers itself refuses a file
            os.makedirs(save_directory, exist_ok=True)
            self.auto_map = copy_code(save_directory, getattr(self, "auto_map", None) or {})
        super().save_pretrained(save_directory)
        if push_to_hub:
            # super().save_pretrained would upload the config without the code, which it did not write.
            self.push_to_hub(kwargs.pop("repo_id", os.path.basename(os.path.normpath(save_directory))), **kwargs)

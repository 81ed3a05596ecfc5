import os
from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from .hub_code import copy_code

MODEL_TYPE = "wedlm"


def check_model_type(model_type: str, name: object) -> None:
    if model_type != MODEL_TYPE:
        raise ValueError(
            f"{name} is of model_type {model_type!r}, and the WeDLM classes support only {MODEL_TYPE!r}; load it with "
            "transformers' Auto classes."
        )


def check_config(config: Qwen3Config) -> None:
    """Raises a ValueError on a config that no model can be built from; its fields may have been set after loading."""
    check_model_type(config.model_type, type(config).__name__)
    heads, key_value_heads = config.num_attention_heads, config.num_key_value_heads
    if min(heads, key_value_heads or 0) < 1 or heads % key_value_heads:
        raise ValueError(
            f"num_attention_heads={heads} is not a multiple of num_key_value_heads={key_value_heads}; every key-value "
            "head serves the same number of query heads, at least one, so correct one of the two in config.json."
        )
    if config.mask_token_id is not None and not 0 <= config.mask_token_id < config.vocab_size:
        raise ValueError(
            f"mask_token_id={config.mask_token_id} lies outside the vocabulary of {config.vocab_size} tokens; set it "
            "to the id of the tokenizer's MASK token, or to None if there is none."
        )


@strict
class WeDLMConfig(Qwen3Config):
    """Configuration of a WeDLM model: Qwen3's, and what lets it be a Qwen2.5 as well and predict masked tokens.

    - `mask_token_id`: the token that stands for a position still to be predicted; None in a checkpoint without one.
    - `mask_row`: how conversion from Qwen got a row for MASK, "unused" or "added", for the way back; else None.
    - `attention_bias`: biases on the query, key and value projections (Qwen2.5 has them, Qwen3 does not).
    - `qk_norm`: RMSNorm on each query and key head (Qwen3 has it, Qwen2.5 does not).
    - `head_dim`: the width of a head, independent of `hidden_size`.

    The defaults are Qwen3's; a Qwen2.5 is `WeDLMConfig(attention_bias=True, qk_norm=False, ...)`.
    """

    model_type = MODEL_TYPE

    mask_token_id: int | None = None
    mask_row: Literal["unused", "added"] | None = None
    qk_norm: bool = True

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        check_config(self)

    def require_mask_token_id(self) -> int:
        """The id of the MASK token, for whoever is about to put one into a sequence."""
        check_config(self)
        if self.mask_token_id is None:
            raise ValueError(
                "mask_token_id is None in the config of this checkpoint, and masked prediction needs a MASK token; "
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
        if not os.path.isfile(save_directory):  # which transformers refuses
            os.makedirs(save_directory, exist_ok=True)
            self.auto_map = copy_code(save_directory, getattr(self, "auto_map", None) or {})
        super().save_pretrained(save_directory)
        if push_to_hub:
            # Not by super().save_pretrained: it would upload only what it wrote itself, the config without the code.
            self.push_to_hub(kwargs.pop("repo_id", os.path.basename(os.path.normpath(save_directory))), **kwargs)

import os

from huggingface_hub.dataclasses import strict
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from wedlm.modeling_wedlm.hub_code import copy_code


@strict
class WeDLMConfig(Qwen3Config):
    """Configuration of a WeDLM model: Qwen3's, and what lets it be a Qwen2.5 as well and predict masked tokens.

    - `mask_token_id`: the token that stands for a position still to be predicted; None in a checkpoint without one.
    - `attention_bias`: biases on the query, key and value projections (Qwen2.5 has them, Qwen3 does not).
    - `qk_norm`: RMSNorm on each query and key head (Qwen3 has it, Qwen2.5 does not).
    - `head_dim`: the width of a head, independent of `hidden_size`.

    The defaults are Qwen3's; a Qwen2.5 is `WeDLMConfig(attention_bias=True, qk_norm=False, ...)`.
    """

    model_type = "wedlm"

    mask_token_id: int | None = None
    qk_norm: bool = True

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        self.check()

    def check(self) -> None:
        """Raises a ValueError on values that contradict each other; asked again when a model is built."""
        if self.num_key_value_heads < 1 or self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}; every key-value head serves the same number of "
                "query heads, so correct one of the two in config.json."
            )
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id={self.mask_token_id} lies outside the vocabulary of {self.vocab_size} tokens; set it "
                "to the id of the tokenizer's MASK token, or to None if there is none."
            )

    def require_mask_token_id(self) -> int:
        """The id of the MASK token, for whoever is about to put one into a sequence."""
        if self.mask_token_id is None:
            raise ValueError(
                "mask_token_id is None in the config of this checkpoint, and masked prediction needs a MASK token; "
                "set model.config.mask_token_id to the id of the token that the model was trained to fill in."
            )
        return self.mask_token_id

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs):
        config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type != cls.model_type:
            raise ValueError(
                f"{pretrained_model_name_or_path} is a {model_type!r} checkpoint, and the WeDLM classes load only "
                f"model_type {cls.model_type!r}; load it with transformers' Auto classes."
            )
        return config_dict, kwargs

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs):
        os.makedirs(save_directory, exist_ok=True)
        self.auto_map = copy_code(save_directory)
        super().save_pretrained(save_directory)
        if push_to_hub:
            # Not by super().save_pretrained: it would upload only what it wrote itself, the config without the code.
            self.push_to_hub(kwargs.pop("repo_id", os.path.basename(os.path.normpath(save_directory))), **kwargs)

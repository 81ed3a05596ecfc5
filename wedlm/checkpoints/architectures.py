"""The stock architectures that WeDLM converts from and to, and the models that their configs describe."""

from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig, Qwen2Config, Qwen3Config

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.shards import Shard
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.model_type import MODEL_TYPE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

WEDLM_CLASS = "WeDLMForCausalLM"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class StockArchitecture(NamedTuple):
    config_class: type[PreTrainedConfig]
    model_class: str  # as `architectures` in config.json names it
    wedlm_fields: dict[str, Any]  # how a WeDLMConfig describes it


STOCK = {  # by model_type
    "qwen2": StockArchitecture(Qwen2Config, "Qwen2ForCausalLM", {"attention_bias": True, "qk_norm": False}),
    "qwen3": StockArchitecture(Qwen3Config, "Qwen3ForCausalLM", {"attention_bias": False, "qk_norm": True}),
}
OWN_FIELDS = ("model_type", "auto_map", "mask_token_id", "mask_row")  # a conversion does not carry them over


def check_architecture(fields: dict, source: object, wanted: tuple[str, ...]) -> None:
    """Refuses a config that conversion cannot take.

    Args:
        fields (`dict`): The content of config.json.
        source (`str` or `os.PathLike`): The name of the checkpoint, for the message.
        wanted (`tuple[str, ...]`): The values of `model_type` that are accepted.
    """
    model_type, architectures = fields.get("model_type"), fields.get("architectures")
    if model_type not in wanted:
        supported = " and ".join(
            "a WeDLM checkpoint" if name == MODEL_TYPE else f"dense {STOCK[name].model_class}" for name in wanted
        )
        kind = f"{model_type!r}, a mixture of experts" if "moe" in str(model_type) else repr(model_type)
        remedy = "; without --to-autoregressive Qwen is converted" if wanted == (MODEL_TYPE,) else ""
        raise CheckpointError(f"{source} is of model_type {kind}; supported is {supported}{remedy}.")
    expected = WEDLM_CLASS if model_type == MODEL_TYPE else STOCK[model_type].model_class
    if architectures is not None and architectures != [expected]:
        raise CheckpointError(
            f"{source} has architectures={architectures!r}; supported is {expected}, so start from that model."
        )
    if fields.get("quantization_config") is not None:
        raise CheckpointError(
            f"{source} is quantized (its config has a quantization_config); start from the checkpoint that was "
            "quantized."
        )
    if model_type == "qwen3" and fields.get("attention_bias"):
        raise CheckpointError(
            f"{source} has attention_bias=True, which in Qwen3 puts a bias on the output projection too; WeDLM has "
            "none there, so start from a checkpoint without biases, as every released Qwen3 is."
        )


def wedlm_model(fields: dict, source: object) -> tuple[WeDLMConfig, WeDLMForCausalLM]:
    """Builds the WeDLM model that a config.json describes, on the meta device; a stock config gets no MASK yet.

    Args:
        fields (`dict`): The content of config.json, of a WeDLM or a stock checkpoint.
        source (`str` or `os.PathLike`): The name of the checkpoint, for messages.
    """
    try:
        is_wedlm = fields["model_type"] == MODEL_TYPE
        config = WeDLMConfig.from_dict(fields) if is_wedlm else wedlm_config(fields)
        with torch.device("meta"):
            return config, WeDLMForCausalLM(config)
    except Exception as error:  # a wrong config raises errors of many kinds
        raise CheckpointError(
            f"No model can be built from the config.json of {source} ({one_line(error)}); correct it."
        ) from error


def wedlm_config(fields: dict) -> WeDLMConfig:
    """The WeDLMConfig of a stock config."""
    architecture = STOCK[fields["model_type"]]
    # The stock class fills in the fields that the file leaves out.
    stock = architecture.config_class.from_dict(fields).to_dict()
    for name in (*OWN_FIELDS, "transformers_version"):
        stock.pop(name, None)
    if fields["model_type"] == "qwen2" and stock.get("head_dim") is None:
        stock["head_dim"] = stock["hidden_size"] // stock["num_attention_heads"]
    return WeDLMConfig(**{**stock, **architecture.wedlm_fields})


def stock_model_type(config: WeDLMConfig, source: object) -> str:
    """The model_type of the stock architecture that has the layers of `config`."""
    for model_type, architecture in STOCK.items():
        if all(getattr(config, name) == value for name, value in architecture.wedlm_fields.items()):
            return model_type
    raise CheckpointError(
        f"{source} has qk_norm={config.qk_norm} and attention_bias={config.attention_bias}; Qwen3 has the norms only "
        "and Qwen2 the biases only, so there is no stock class to convert it to."
    )


def stock_fields(config: WeDLMConfig, model_type: str) -> dict:
    """The stock config.json of a WeDLMConfig, in the flat form that engines on an older transformers read too."""
    architecture = STOCK[model_type]
    fields = config.to_dict()
    for name in (*OWN_FIELDS, "qk_norm"):
        fields.pop(name, None)
    if model_type == "qwen2":
        del fields["attention_bias"]
        if fields["head_dim"] * fields["num_attention_heads"] == fields["hidden_size"]:
            del fields["head_dim"]  # Qwen2 computes it
    fields = architecture.config_class(**fields).to_diff_dict()
    rope = fields.pop("rope_parameters")
    fields["rope_theta"] = rope.pop("rope_theta")
    fields["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    fields["torch_dtype"] = fields.pop("dtype", None)
    fields["architectures"] = [architecture.model_class]
    return fields


def check_shapes(shards: list[Shard], model: WeDLMForCausalLM, source: object) -> None:
    """Refuses weight files whose names and shapes are not those of the model.

    Args:
        shards (`list[Shard]`): The weight files, as `read_shards` returns them.
        model (`WeDLMForCausalLM`): The model that the config describes.
        source (`str` or `os.PathLike`): The name of the checkpoint, for messages.
    """
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tensor["shape"] for shard in shards for name, tensor in shard.tensors.items()}
    optional = {HEAD} if model.config.tie_word_embeddings else set()
    for name in sorted(expected.keys() - found.keys() - optional):
        raise CheckpointError(f"{source} has no weight {name}, which its config asks for; correct one of the two.")
    for name in sorted(found):
        if name not in expected:
            if name.endswith("rotary_emb.inv_freq"):  # old checkpoints hold this buffer; every class computes it
                continue
            raise CheckpointError(
                f"{source} has a weight {name}, which its config has no place for; correct one of the two."
            )
        if found[name] != expected[name]:
            raise CheckpointError(
                f"{name} of {source} has the shape {found[name]}, and by its config {expected[name]}; correct one of "
                "the two."
            )

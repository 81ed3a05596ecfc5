"""The stock architectures that WeDLM converts from and to, and the models that their configs describe."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.resolve import STOCK_FAMILIES, families
from wedlm.checkpoints.shards import HEAD, Shard
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

if TYPE_CHECKING:
    from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
    from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

# Torch and transformers take seconds to import, so the functions that need them import them.

WEDLM_CLASS = "WeDLMForCausalLM"


class StockArchitecture(NamedTuple):
    model_class: str  # as `architectures` in config.json names it
    wedlm_fields: dict[str, Any]  # how a WeDLMConfig describes it
    # Fields that can ask for other layers than WeDLM's, each with the values (or values of a list) that do not.
    harmless: dict[str, tuple]


PLAIN = {"attention_bias": False, "qk_norm": False}
FULL_ATTENTION = {"sliding_window": (None,), "layer_types": (None, "full_attention")}
NO_BIAS = {"attention_bias": (None, False)}  # it would put a bias on the output projection too; WeDLM has none there
# By model_type. Llama and Mistral have the same layers; a WeDLM that was converted from neither becomes a Llama.
STOCK = {
    "qwen2": StockArchitecture("Qwen2ForCausalLM", {"attention_bias": True, "qk_norm": False}, {}),
    "qwen3": StockArchitecture("Qwen3ForCausalLM", {"attention_bias": False, "qk_norm": True}, NO_BIAS),
    "llama": StockArchitecture("LlamaForCausalLM", PLAIN, {**NO_BIAS, "mlp_bias": (None, False), **FULL_ATTENTION}),
    "mistral": StockArchitecture("MistralForCausalLM", PLAIN, FULL_ATTENTION),
}
KEPT_ENTRY = "wedlm"  # of a stock config.json: what a WeDLM that was converted to it knows beside its weights
# A conversion does not carry these over.
OWN_FIELDS = ("model_type", "auto_map", "mask_token_id", "mask_row", "converted_from", KEPT_ENTRY)


def check_architecture(fields: dict, source: object, wanted: tuple[str, ...]) -> None:
    """Refuses a config.json whose `model_type` is not wanted, or that no conversion can take."""
    model_type, architectures = fields.get("model_type"), fields.get("architectures")
    if model_type not in wanted:
        supported = f"a dense causal language model of {families()}, or a WeDLM checkpoint"
        if wanted == (MODEL_TYPE,):
            supported = f"a WeDLM checkpoint; without --to-autoregressive {families()} are converted"
        raise CheckpointError(f"{source} is of model_type {model_type!r}; supported is {supported}.")
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
    if model_type in STOCK:
        check_layers(fields, source, model_type)


def check_layers(fields: dict, source: object, model_type: str) -> None:
    """Refuses a config that asks for layers which WeDLM and a stock architecture do not share."""
    from transformers import CONFIG_MAPPING

    for name, harmless in STOCK[model_type].harmless.items():
        # The stock class fills in a field that is left out.
        value = fields.get(name, getattr(CONFIG_MAPPING[model_type], name, None))
        if not all(each in harmless for each in (value if isinstance(value, list) else [value])):
            raise CheckpointError(
                f"{source} has {name}={one_line(value)}, and WeDLM is converted from and to "
                f"{STOCK_FAMILIES[model_type]} only with {name}={harmless[-1]}; start from a checkpoint that has it."
            )


def read_wedlm_config(fields: dict, source: object) -> "WeDLMConfig":
    """The WeDLMConfig of a config.json, WeDLM or stock; a stock config gets no MASK yet."""
    from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig

    with refusing_configs(source):
        config = WeDLMConfig.from_dict(fields) if fields["model_type"] == MODEL_TYPE else from_stock(fields)
        if config.dtype is not None and not getattr(config.dtype, "is_floating_point", False):
            raise ValueError(f"its dtype is {config.dtype!r}, and weights are of one such as 'bfloat16'")
        return config


def wedlm_model(fields: dict, source: object) -> "tuple[WeDLMConfig, WeDLMForCausalLM]":
    """The WeDLMConfig of a config.json, and the model that it describes, on the meta device."""
    import torch

    from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

    config = read_wedlm_config(fields, source)
    with refusing_configs(source), torch.device("meta"):
        return config, WeDLMForCausalLM(config)


@contextmanager
def refusing_configs(source: object) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a wrong config raises errors of many kinds
        raise CheckpointError(
            f"No model can be built from the config.json of {source} ({one_line(error)}); correct it."
        ) from error


def from_stock(fields: dict) -> "WeDLMConfig":
    from transformers import CONFIG_MAPPING

    from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig

    model_type = fields["model_type"]
    # The stock class fills in the fields that the file leaves out.
    stock = CONFIG_MAPPING[model_type].from_dict(fields).to_dict()
    for name in (*OWN_FIELDS, "transformers_version"):
        stock.pop(name, None)
    if model_type == "qwen2" and stock.get("head_dim") is None:
        stock["head_dim"] = stock["hidden_size"] // stock["num_attention_heads"]
    return WeDLMConfig(**{**stock, **STOCK[model_type].wedlm_fields, "converted_from": model_type})


def stock_model_type(config: "WeDLMConfig") -> str | None:
    """The model_type of the stock architecture that has the layers of `config`; None if none has them.

    Among architectures with the same layers it is the one that the checkpoint was converted from.
    """
    same = [
        model_type
        for model_type, architecture in STOCK.items()
        if all(getattr(config, name) == value for name, value in architecture.wedlm_fields.items())
    ]
    return config.converted_from if config.converted_from in same else next(iter(same), None)


def family_of(config: "WeDLMConfig") -> str:
    """The name of the stock architecture whose layers are those of `config`, or nearest to them."""
    return STOCK_FAMILIES[stock_model_type(config) or "qwen3"]


def stock_fields(config: "WeDLMConfig", model_type: str) -> dict:
    """The stock config.json of a WeDLMConfig, in the flat form that engines on an older transformers read too."""
    from transformers import CONFIG_MAPPING

    stock_class, fields = CONFIG_MAPPING[model_type], config.to_dict()
    names, stock_names = ({field.name for field in dataclasses.fields(each)} for each in (config, stock_class))
    own = names - stock_names
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        own.discard("head_dim")  # the class of Qwen2 computes it and has no such field, but reads one
    for name in {*OWN_FIELDS, *own}:
        fields.pop(name, None)
    fields = stock_class(**fields).to_diff_dict()
    rope = fields.pop("rope_parameters")
    fields["rope_theta"] = rope.pop("rope_theta")
    fields["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    fields["torch_dtype"] = fields.pop("dtype", None)
    fields["architectures"] = [STOCK[model_type].model_class]
    return fields


def check_shapes(shards: list[Shard], model: "WeDLMForCausalLM", source: object) -> None:
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tensor.shape for shard in shards for name, tensor in shard.tensors.items()}
    if model.config.tie_word_embeddings:
        found.setdefault(HEAD, expected[HEAD])
    for name in sorted(expected.keys() | found.keys()):
        # Old checkpoints hold a buffer inv_freq, which every class computes.
        if found.get(name) != expected.get(name) and not name.endswith("rotary_emb.inv_freq"):
            is_there, is_wanted = (each.get(name, "missing") for each in (found, expected))
            raise CheckpointError(
                f"The weight {name} of {source} is {is_there}, and by its config {is_wanted}; correct one of the two."
            )

"""Puts the blocks of a GGUF file into a model of transformers, and takes them out again."""

import re
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from wedlm.fused.blocks import BLOCKS, Packed
from wedlm.fused.gguf_file import GgufFile, check_architecture
from wedlm.fused.packed import PackedEmbedding, PackedLinear, PackedWeight, refuse_saving

# Names of a file's tensors, and of the modules that they belong to.
MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OF_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
ROPE_FACTORS = "rope_freqs.weight"  # of Llama 3, which the config of a model says


class Part(NamedTuple):
    """What a module of a model gets from a file."""

    module: nn.Module
    name: str
    weight: Packed | torch.Tensor
    bias: torch.Tensor | None


def pack(model: PreTrainedModel, file: GgufFile) -> None:
    """Gives a model the weights of a file: its linear layers and its embedding keep the blocks, where they lie.

    Raises:
        `ValueError`: before anything is changed, if file and model do not fit.
    """
    refuse_blocks(model)
    parts, dtype = parts_of(model, file), model.dtype
    for part in parts:
        if isinstance(part.weight, torch.Tensor):
            part.module.weight = nn.Parameter(part.weight.to(dtype), requires_grad=part.module.weight.requires_grad)
            continue
        if part.bias is not None:
            part.module.bias = nn.Parameter(part.bias.to(dtype), requires_grad=False)
        if isinstance(part.module, nn.Embedding):
            module = PackedEmbedding(part.weight, part.module, dtype)
        else:
            module = PackedLinear(part.weight, part.module)
        model.set_submodule(part.name, module)
    model.save_pretrained = refuse_saving  # before transformers writes the config


def parts_of(model: PreTrainedModel, file: GgufFile) -> list[Part]:
    """What the modules of a model get; a ValueError if something does not fit."""
    architecture = check_architecture(file)
    given = {name: info for name, info in file.tensors.items() if name != ROPE_FACTORS}
    named = {module_name(architecture, name): name for name in given}
    parts = []
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "base_layer"):
            raise ValueError(
                "This model has an adapter already; give it the weights of a file first, and then the adapter."
            )
        if not isinstance(weight, torch.Tensor):
            continue
        tensor = named.pop(f"{name}.weight", None)
        if tensor is None and name == "lm_head":  # tied, as files say it
            tensor = "token_embd.weight"
        if tensor is None:
            raise ValueError(f"{file.path} has no weights of {name}, which this model has; give the model's own file.")
        info = given[tensor]
        if info.shape != tuple(weight.shape):
            raise ValueError(
                f"{tensor} of {file.path} is {list(info.shape)}, and {name} of this model {list(weight.shape)}; "
                "give the model's own file."
            )
        bias = named.pop(f"{name}.bias", None)
        if (bias is None) != (getattr(module, "bias", None) is None):
            where, what = ("this model", file.path) if bias is None else (file.path, "this model")
            raise ValueError(f"{name} has a bias in {where}, and none in {what}; give the model's own file.")
        if bias is not None and given[bias].shape != info.shape[:1]:
            raise ValueError(
                f"{bias} of {file.path} is {list(given[bias].shape)}, and there are {info.shape[0]} outputs; give the "
                "model's own file."
            )
        if isinstance(module, nn.Linear | nn.Embedding):
            order = order_of(architecture, tensor, info.shape[0], model.config)
            value = Packed(file.rows(info), info.type.name, order)
            values = None if bias is None else numbers_of(file, bias)
            parts.append(Part(module, name, value, values if order is None or bias is None else values[order]))
        else:
            numbers = numbers_of(file, tensor)
            parts.append(Part(module, name, numbers - 1 if architecture == "gemma3" else numbers, None))
    if named:
        raise ValueError(
            f"{file.path} has the tensor {next(iter(named.values()))}, and this model has no place for it "
            f"({len(named)} such tensors in all); give the model's own file."
        )
    return parts


def module_name(architecture: str, name: str) -> str:
    """module_name("llama", "blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"; of others, the same."""
    of_layers = OF_LAYERS | OF_GEMMA if architecture == "gemma3" else OF_LAYERS
    stem, _, kind = name.rpartition(".")
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)", stem):
        return f"model.layers.{match[1]}.{of_layers.get(match[2], match[2])}.{kind}"
    return f"{MODULES.get(stem, stem)}.{kind}"


def numbers_of(file: GgufFile, tensor: str) -> torch.Tensor:
    """A tensor of one dimension, in float32."""
    info = file.tensors[tensor]
    return Packed(file.rows(info)[None], info.type.name).numbers(torch.float32, slice(None))[0]


def order_of(architecture: str, tensor: str, rows: int, config: PreTrainedConfig) -> torch.Tensor | None:
    """Files of Llama and Mistral have the values that are rotated together side by side in queries and keys."""
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    field = heads.get(tensor.split(".")[-2])
    if architecture != "llama" or field is None:
        return None
    order = torch.arange(rows, dtype=torch.int32).view(getattr(config, field), -1, 2)
    return order.transpose(1, 2).flatten()


def unpack(model: nn.Module) -> None:
    """Makes the blocks of a model numbers again, in the layers that it had."""
    norms = [each for name, each in model.named_modules() if name.endswith("norm") and hasattr(each, "weight")]
    dtype = norms[0].weight.dtype if norms else torch.float32
    known: dict[int, nn.Parameter] = {}  # the head may be the embedding
    for name, module in list(model.named_modules()):
        if isinstance(module, PackedLinear | PackedEmbedding):
            key = module.weight.data_ptr()
            if key not in known:
                known[key] = nn.Parameter(module.packed.numbers(dtype, slice(None)))
            model.set_submodule(name, module.plain_with(known[key]))
    vars(model).pop("save_pretrained", None)


def refuse_blocks(model: nn.Module) -> None:
    if any(isinstance(module, PackedWeight) for module in model.modules()):
        raise ValueError("The weights of this model lie in blocks already; load the model anew, or unfuse it first.")


def check_rounding(linears: list[nn.Linear], weights: str) -> str:
    """Returns the type of blocks that `weights` asks for, and refuses what the layers cannot have."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"weights={weights!r} needs the package gguf ({error}); install it by `pip install gguf`, or leave it out."
        ) from error
    type = weights.upper()
    for linear in linears:
        if linear.in_features % BLOCKS[type].length:
            raise ValueError(
                f"weights={weights!r} rounds {BLOCKS[type].length} weights of a row at a time, and this model has a "
                f"layer with {linear.in_features} inputs; leave weights out."
            )
    return type


def rounded(layer: nn.Linear, type: str) -> PackedLinear:
    """A linear layer whose weights are rounded to blocks."""
    from gguf import GGMLQuantizationType, quantize

    blocks = quantize(layer.weight.detach().float().cpu().numpy(), GGMLQuantizationType[type])
    return PackedLinear(Packed(torch.from_numpy(blocks), type), layer)


def own_linears(module: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """The linear layers in a module with their parents, but those of adapters, which PEFT keeps in a ModuleDict."""
    return [
        (parent, name, layer)
        for parent in module.modules()
        for name, layer in parent.named_children()
        if type(layer) is nn.Linear and not isinstance(parent, nn.ModuleDict)
    ]

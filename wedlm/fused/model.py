"""Makes a model ready to decode with few operators, and gives it back as it was."""

import os
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel, logging

from wedlm.fused.gguf_file import GgufFile
from wedlm.fused.layer import FusedLayer, fused_forward, why_not_fused
from wedlm.fused.native import SET, described_product
from wedlm.fused.packed import PackedWeight, refuse_saving
from wedlm.fused.packing import check_rounding, own_linears, pack, refuse_blocks, rounded, unpack
from wedlm.fused.product import Product, normed
from wedlm.fused.stack import Layers, stacked_forward

logger = logging.get_logger(__name__)


QUERY_COST = 0.2  # of one more query where weights are in blocks, which a forward of one reads in little time
ROUNDED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")  # what gguf's own quantizer makes


def fuse(model: nn.Module, weights: str | os.PathLike | GgufFile | None = None) -> nn.Module:
    """Fuses the decoder layers of a model, so that decoding takes less time, and returns the model.

    Projections of the same input become one product; the weights of the model become views of the merged ones. On a
    CPU a forward pass over a few tokens is one call of C, if the package was installed with a compiler. Over one token
    it then takes little more time than reading the weights. The output changes by rounding at most. You can train,
    save, cast and move the model as before.

    Decoder layers of Llama, Mistral, Qwen2, Qwen3 and WeDLM are fused. Others and quantized ones stay as they are, and
    a warning names them.

    Args:
        model (`nn.Module`): A causal LM of transformers, or a PeftModel around one.
        weights (`str` or `os.PathLike`, *optional*): The path of a GGUF file of this model. The linear layers and the
            embedding then keep the file's blocks, in a quarter of the memory or less, and compute with their values.
            Or "q8_0", "q5_1", "q5_0", "q4_1" or "q4_0", which rounds the model's own linear layers to such blocks and
            changes the output. A model with blocks cannot be saved.

    Example:

        model = wedlm.fuse(AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct"))
    """
    owner, left = owner_of(model), {}
    if weights in ROUNDED:
        round_weights(model, owner, str(weights))
    elif weights is not None:
        pack(owner, opened(weights))
    generation_config = getattr(owner, "generation_config", None)
    if weights is not None and generation_config is not None:
        if getattr(generation_config, "query_cost", None) is None:
            generation_config.query_cost = QUERY_COST
    for name, layer in decoder_layers(model):
        if (reason := why_not_fused(layer)) is None:
            layer.fused, layer.forward = FusedLayer(layer), partial(fused_forward, layer)
        else:
            left.setdefault(reason, []).append(name)
    for decoder in decoders(model):
        if type(decoder.layers) is nn.ModuleList and any("fused" in vars(layer) for layer in decoder.layers):
            decoder.layers.__class__, decoder.stack = Layers, None
            decoder.forward = partial(stacked_forward, decoder)
            if hasattr(decoder.norm, "variance_epsilon"):
                decoder.norm.forward = partial(fused_norm, decoder.norm)
    for reason, names in left.items() if weights is None or weights in ROUNDED else ():  # a file's are in blocks
        logger.warning(f"{names[0]} stays as it is ({len(names)} such layers in all): {reason}.")
    if next(decoder_layers(model), None) is None:
        logger.warning(f"{type(model).__name__} stays as it is: it has no decoder layers of a known form.")
    head = owner.get_output_embeddings()
    if type(head) is nn.Linear and not hasattr(head, "_hf_hook"):
        head.forward = partial(fused_head, head)
    if SET is None and owner.device.type == "cpu":
        logger.warning_once(f"Products of few rows are computed {described_product()}.")
        if weights is not None:
            logger.warning_once(
                "Without the C code, WeDLM unpacks the quantized weights in every forward pass, which takes seconds; "
                "call wedlm.unfuse(model), which unpacks them once."
            )
    return model


def opened(weights: str | os.PathLike | GgufFile) -> GgufFile:
    if isinstance(weights, GgufFile):
        return weights
    if not Path(weights).exists():
        raise ValueError(
            f"weights={str(weights)!r} is neither a GGUF file here nor one of {', '.join(ROUNDED)}; pass one of them, "
            "or leave it out to keep the weights."
        )
    return GgufFile(weights)


def round_weights(model: nn.Module, owner: nn.Module, weights: str) -> None:
    """Rounds the weights of the linear layers of layers that can be fused, and of the head."""
    refuse_blocks(owner)
    linears = [
        each for _, layer in decoder_layers(model) if why_not_fused(layer) is None for each in own_linears(layer)
    ]
    head = owner.get_output_embeddings()
    if type(head) is nn.Linear:
        linears += [each for each in own_linears(owner) if each[2] is head]
    type_of_blocks = check_rounding([linear for *_, linear in linears], weights)
    for parent, name, linear in linears:
        setattr(parent, name, rounded(linear, type_of_blocks))
    owner.save_pretrained = refuse_saving  # before transformers writes the config


def unfuse(model: nn.Module) -> nn.Module:
    """Undoes `fuse`: gives the model separate weights and its own forward, unpacks blocks, and returns the model."""
    owner = owner_of(model)
    for _, layer in decoder_layers(model):
        if "forward" in vars(layer) and hasattr(layer, "fused"):
            del layer.forward, layer.fused
            for weight in layer.parameters():
                if weight.untyped_storage().nbytes() > weight.nbytes:
                    weight.data = weight.data.clone()
    for decoder in decoders(model):
        if type(decoder.layers) is Layers:
            decoder.layers.__class__ = nn.ModuleList
        if "stack" in vars(decoder):
            del decoder.forward, decoder.stack
            vars(decoder.norm).pop("forward", None)
    head = owner.get_output_embeddings()
    if head is not None and isinstance(vars(head).get("forward"), partial):
        del head.forward
    unpack(owner)
    generation_config = getattr(owner, "generation_config", None)
    if getattr(generation_config, "query_cost", None) == QUERY_COST:
        generation_config.query_cost = None
    return model


def product_of(model: nn.Module) -> str | None:
    """Returns the instruction set by which a fused model multiplies, or "torch"; None for other models."""
    is_fused = any(getattr(layer, "fused", None) is not None for _, layer in decoder_layers(model))
    types = {module.type: None for module in model.modules() if isinstance(module, PackedWeight)}
    return ", ".join([SET or "torch", *types]) if is_fused else None


def decoder_layers(model: nn.Module):
    """The decoder layers of a model, by name."""
    for name, module in model.named_modules():
        if hasattr(module, "self_attn") and hasattr(module, "mlp"):
            yield name, module


def decoders(model: nn.Module):
    """The modules that call decoder layers one after another."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and isinstance(getattr(module, "layers", None), nn.ModuleList):
            yield module


def owner_of(model: nn.Module) -> nn.Module:
    """The model of transformers below an adapter of PEFT."""
    while hasattr(model, "get_base_model"):
        model = model.get_base_model()
    if not hasattr(model, "get_output_embeddings"):
        raise ValueError(
            f"model is a {type(model).__name__}, and a model of transformers is fused; load it by "
            "AutoModelForCausalLM.from_pretrained."
        )
    return model


def fused_norm(norm: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    is_autocast = torch.is_autocast_enabled(hidden_states.device.type)
    if torch.is_grad_enabled() or is_autocast or hidden_states.dtype != norm.weight.dtype:
        return type(norm).forward(norm, hidden_states)
    return normed(hidden_states, norm.weight, norm.variance_epsilon)


def fused_head(head: nn.Linear, hidden_states: torch.Tensor) -> torch.Tensor:
    is_autocast = torch.is_autocast_enabled(hidden_states.device.type)
    if torch.is_grad_enabled() or is_autocast or hidden_states.dtype != head.weight.dtype:
        return nn.Linear.forward(head, hidden_states)
    return Product(head.weight.detach(), head.bias)(hidden_states)

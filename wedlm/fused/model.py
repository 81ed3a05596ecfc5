"""Makes a model ready to decode with few operators, and gives it back as it was."""

from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel, logging

from wedlm.fused.int8 import Int8Linear, refuse_saving, to_int8
from wedlm.fused.layer import FusedLayer, fused_forward, why_not_fused
from wedlm.fused.native import SET, described_product
from wedlm.fused.product import Product, normed
from wedlm.fused.stack import Layers, stacked_forward

logger = logging.get_logger(__name__)


def fuse(model: nn.Module, weights: str | None = None) -> nn.Module:
    """Gives the decoder layers of a model a forward with few operators, and returns the model.

    Projections of the same input become one product, whose weights those of the model are views of. On a CPU a forward
    of few tokens is one call of C, if the package was installed with a compiler, and one of a single token takes
    little more time than reading the weights. The texts change by rounding at most. The model can be trained, saved,
    cast and moved as before.

    Layers of other families than Llama, Mistral, Qwen2, Qwen3 and WeDLM stay as they are, and quantized ones.

    Args:
        model (`nn.Module`): A causal LM of transformers, or a PeftModel around one.
        weights (`str`, *optional*): "int8" rounds the weights of the linear layers to int8, with a scale for each row.
            That is another model, with other texts and half or a quarter of the memory, and it cannot be saved.

    Example:

        model = wedlm.fuse(AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct"))
    """
    if weights not in (None, "int8"):
        raise ValueError(f'weights={weights!r} is not known; pass "int8", or leave it out to keep the weights.')
    owner, left = owner_of(model), {}
    for name, layer in decoder_layers(model):
        if weights == "int8" and why_not_fused(layer) is None:
            to_int8(layer)
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
    for reason, names in left.items():
        logger.warning(f"{names[0]} stays as it is ({len(names)} such layers in all): {reason}.")
    if next(decoder_layers(model), None) is None:
        logger.warning(f"{type(model).__name__} stays as it is: it has no decoder layers of a known form.")
    head = owner.get_output_embeddings()
    if type(head) is nn.Linear and not hasattr(head, "_hf_hook"):
        if weights == "int8":
            owner.set_output_embeddings(Int8Linear(head))
        else:
            head.forward = partial(fused_head, head)
    if SET is None and owner.device.type == "cpu":
        logger.warning_once(f"Products of few rows are computed {described_product()}.")
    if weights == "int8":
        owner.save_pretrained = refuse_saving  # before transformers writes the config
    return model


def unfuse(model: nn.Module) -> nn.Module:
    """Gives a model its own forward and separate weights again, and returns it."""
    owner = owner_of(model)
    if any(isinstance(module, Int8Linear) for module in model.modules()):
        raise ValueError(
            'fuse(model, weights="int8") has rounded the weights; load the model again to have them back.'
        )
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
    return model


def product_of(model: nn.Module) -> str | None:
    """Returns the instruction set by which a fused model multiplies, or "torch"; None for other models."""
    is_fused = any(getattr(layer, "fused", None) is not None for _, layer in decoder_layers(model))
    is_int8 = any(isinstance(module, Int8Linear) for module in model.modules())
    return (SET or "torch") + (", int8" if is_int8 else "") if is_fused else None


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

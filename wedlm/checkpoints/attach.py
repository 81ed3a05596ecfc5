"""Puts a draft adapter from PEFT's files into the model itself, which then needs no PEFT and is faster."""

import re
from copy import copy
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from wedlm.adapters.base_model import check_base
from wedlm.adapters.draft_type import DRAFT_TYPE
from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.resolve import ADAPTER_FILE, ADAPTER_WEIGHTS
from wedlm.checkpoints.shards import read_json
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

PREFIX = "base_model.model.model."


def attach_adapter(model: WeDLMForCausalLM, folder: Path) -> None:
    """Adds the draft adapter in a folder to a model.

    Args:
        model (`WeDLMForCausalLM`): The model, changed in place. Its config describes the adapter afterwards.
        folder (`Path`): The folder of the adapter.
    """
    if model.config.drafts is not None:
        raise CheckpointError(f"The model has a draft adapter already; load its base anew, and then add {folder}.")
    try:
        fields = read_json(folder / ADAPTER_FILE)
        if fields.get("peft_type") != DRAFT_TYPE:
            raise ValueError(f"its peft_type is {fields.get('peft_type')!r}, that of draft adapters {DRAFT_TYPE!r}")
        if any(weight.is_meta for weight in model.parameters()):
            raise ValueError("some weights of the model are not in memory")
        rank, scale = fields["r"], fields["lora_alpha"] / fields["r"]
        modules = sorted(fields["target_modules"])
        given = {own_name(name): tensor for name, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}
        check_base(model, fields.get("base_fingerprint"))
        config = copy(model.config)
        config.require_mask_token_id()
        config.drafts = {"rank": rank, "modules": modules}
        check_shapes(given, shapes_of_drafts(model, config))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{folder} cannot be used as a draft adapter of this model ({one_line(error)}); give the adapter of this "
            "model, or copy it again."
        ) from error
    dtype = model.dtype  # before there are weights of another one
    model.config.drafts = config.drafts
    model.model.add_drafts(**config.drafts)
    for name, parameter in model.model.named_parameters():
        if name in given:
            tensor = given[name] * scale if name.endswith(".up") else given[name]
            parameter.data = tensor.to(parameter.device, dtype)


def shapes_of_drafts(model: WeDLMForCausalLM, config) -> dict[str, torch.Size]:
    """The shapes of the weights that a draft adapter adds to a model of this config."""
    with torch.device("meta"):
        parameters = type(model.model)(config).named_parameters()
    return {name: value.shape for name, value in parameters if name == "mask_embedding" or ".drafts." in name}


def check_shapes(given: dict[str, torch.Tensor], wanted: dict[str, torch.Size]) -> None:
    if wrong := sorted(given.keys() ^ wanted.keys()):
        raise ValueError(f"{wrong[0]} is in one of them only, {len(wrong)} such weights in all")
    for name, shape in wanted.items():
        if given[name].shape != shape:
            raise ValueError(f"{name} has the shape {tuple(given[name].shape)} and should have {tuple(shape)}")


def own_name(name: str) -> str:
    """own_name("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight") == "layers.0.mlp.drafts.up_proj.down" """
    name = name.removeprefix(PREFIX).removesuffix(".weight")
    if name == "embed_tokens.lora_mask":
        return "mask_embedding"
    name = re.sub(r"\.(\w+)\.lora_A$", r".drafts.\1.down", name)
    return re.sub(r"\.(\w+)\.lora_B$", r".drafts.\1.up", name)

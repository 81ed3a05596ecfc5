"""Puts a draft adapter from PEFT's files into the model itself, which then needs no PEFT and is faster."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file

from wedlm.checkpoints.errors import CheckpointError
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

DRAFT_TYPE = "WEDLM_DRAFT"  # peft_type in adapter_config.json
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model.model."


def attach_adapter(model: WeDLMForCausalLM, folder: Path) -> None:
    """Adds the draft adapter in a folder to a model.

    Args:
        model (`WeDLMForCausalLM`): The model, changed in place. Its config describes the adapter afterwards.
        folder (`Path`): The folder of the adapter.
    """
    fields = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    tensors = load_file(folder / WEIGHTS_FILE)
    model.config.drafts = {"rank": fields["r"], "modules": sorted(fields["target_modules"])}
    model.model.add_drafts(**model.config.drafts)
    wanted = {name: tensor for name, tensor in model.model.named_parameters() if is_of_adapter(name)}
    given = {own_name(name): tensor for name, tensor in tensors.items()}
    scale = fields["lora_alpha"] / fields["r"]
    if wanted.keys() != given.keys():
        (name, *_) = sorted(wanted.keys() ^ given.keys())
        raise CheckpointError(f"{folder} and its base do not fit together: {name} is in one of them only.")
    for name, parameter in wanted.items():
        tensor = given[name] * scale if name.endswith(".up") else given[name]
        parameter.data = tensor.to(parameter.device, model.dtype)


def is_of_adapter(name: str) -> bool:
    return name == "mask_embedding" or ".drafts." in name


def own_name(name: str) -> str:
    """own_name("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight") == "layers.0.mlp.drafts.up_proj.down" """
    name = name.removeprefix(PREFIX).removesuffix(".weight")
    if name == "embed_tokens.lora_mask":
        return "mask_embedding"
    name = re.sub(r"\.(\w+)\.lora_A$", r".drafts.\1.down", name)
    return re.sub(r"\.(\w+)\.lora_B$", r".drafts.\1.up", name)

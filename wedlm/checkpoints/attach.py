"""Puts a draft adapter from PEFT's files into the model itself, or beside its weights; it then needs no PEFT."""

import re
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from wedlm.checkpoints.architectures import read_wedlm_config
from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.fingerprint import EMBEDDING, Fingerprint, check_base, fingerprint, fingerprint_of
from wedlm.checkpoints.resolve import ADAPTER_WEIGHTS, CONFIG_FILE, DRAFT_TYPE, adapter_fields
from wedlm.checkpoints.shards import DTYPES, Shard, read_json, read_shards
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

PREFIX = "base_model.model.model."


class NativeAdapter(NamedTuple):
    """A draft adapter in the form that the model itself has."""

    drafts: dict[str, Any]  # of the config
    tensors: dict[str, torch.Tensor]  # by name in `WeDLMModel`


def attach_adapter(model: WeDLMForCausalLM, folder: Path) -> None:
    """Adds the draft adapter in a folder to a model.

    Args:
        model (`WeDLMForCausalLM`): The model, changed in place. Its config describes the adapter afterwards.
        folder (`Path`): The folder of the adapter.
    """
    adapter = native_adapter(folder, model, fingerprint(model))
    if any(weight.is_meta for weight in model.parameters()):
        raise CheckpointError(
            f"{folder} cannot be added, because some weights of the model are not in memory; load all of them."
        )
    dtype = model.dtype  # before there are weights of another one
    model.config.drafts = adapter.drafts
    model.model.add_drafts(**adapter.drafts)
    for name, parameter in model.model.named_parameters():
        if name in adapter.tensors:
            parameter.data = adapter.tensors[name].to(parameter.device, dtype)


def adapter_on_disk(folder: Path, model: WeDLMForCausalLM, shards: list[Shard]) -> NativeAdapter:
    """A draft adapter as the weight files of its base hold it: by name in `WeDLMForCausalLM`, in the base's dtype.

    Args:
        folder (`Path`): The folder of the adapter.
        model (`WeDLMForCausalLM`): The base, whose weights may be missing.
        shards (`list[Shard]`): The weight files of the base.
    """
    adapter = native_adapter(folder, model, fingerprint_of_files(shards, model.config))
    embedding = next(shard.tensors[EMBEDDING] for shard in shards if EMBEDDING in shard.tensors)
    dtype = model.config.dtype or getattr(torch, DTYPES[embedding["dtype"]].name)
    return adapter._replace(tensors={f"model.{name}": value.to(dtype) for name, value in adapter.tensors.items()})


def fingerprint_on_disk(folder: Path) -> Fingerprint:
    """The `fingerprint` of a checkpoint in a folder, stock or WeDLM."""
    return fingerprint_of_files(read_shards(folder), read_wedlm_config(read_json(folder / CONFIG_FILE), folder))


def fingerprint_of_files(shards: list[Shard], config: WeDLMConfig) -> Fingerprint:
    paths = {name: shard.path for shard in shards for name in shard.tensors}

    def read(name: str) -> torch.Tensor:
        with safe_open(paths[name], framework="pt") as file:
            return file.get_tensor(name)

    return fingerprint_of(paths, read, config)


def native_adapter(folder: Path, model: WeDLMForCausalLM, base_fingerprint: Fingerprint) -> NativeAdapter:
    """Reads a draft adapter, and refuses one that does not fit the model.

    Args:
        folder (`Path`): The folder of the adapter.
        model (`WeDLMForCausalLM`): The base, whose weights may be missing.
        base_fingerprint (`Fingerprint`): That of its weights.
    """
    if model.config.drafts is not None:
        raise CheckpointError(f"The model has a draft adapter already; load its base anew, and then add {folder}.")
    try:
        fields = adapter_fields(folder)
        if fields.get("peft_type") != DRAFT_TYPE:
            raise ValueError(f"its peft_type is {fields.get('peft_type')!r}, that of draft adapters {DRAFT_TYPE!r}")
        rank, scale = fields["r"], fields["lora_alpha"] / fields["r"]
        tensors = {own_name(name): tensor for name, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}
        check_base(base_fingerprint, fields)
        config = copy(model.config)
        config.require_mask_token_id()
        config.drafts = {"rank": rank, "modules": sorted(fields["target_modules"])}
        check_shapes(tensors, shapes_of_drafts(model, config))
        scaled = {name: value * scale if name.endswith(".up") else value for name, value in tensors.items()}
        if broken := [name for name, value in scaled.items() if not value.isfinite().all()]:
            raise ValueError(f"{broken[0]} holds values that are not finite, {len(broken)} such weights in all")
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise CheckpointError(
            f"{folder} cannot be used as a draft adapter of this model ({one_line(error)}); give the adapter of this "
            "model, or copy it again."
        ) from error
    return NativeAdapter(config.drafts, scaled)


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

"""Loads the model and the tokenizer of a WeDLM checkpoint, and puts a draft adapter of PEFT's files into a model."""

import os
import re
from contextlib import suppress
from copy import copy
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    logging,
)

from wedlm.checkpoints.architectures import read_wedlm_config
from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.fingerprint import Fingerprint, check_base, fingerprint, fingerprint_of_files
from wedlm.checkpoints.gguf import load_gguf
from wedlm.checkpoints.resolve import (
    ADAPTER_WEIGHTS,
    DRAFT_TYPE,
    GENERATION_FILE,
    adapter_fields,
    described_drafts,
    draft_adapter,
    is_gguf,
    read_config,
    read_generation_fields,
    wedlm_folder,
)
from wedlm.checkpoints.shards import DTYPES, EMBEDDING, Shard
from wedlm.checkpoints.tokenizer_files import load_tokenizer
from wedlm.fused.layer import CLASSES
from wedlm.fused.model import decoder_layers, fuse
from wedlm.generation.model_kind import text_config_of
from wedlm.generation.parameters import DEFAULTS
from wedlm.generation.transformers_internals import processors_of, resolved_generation_config
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.model_type import MODEL_TYPE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM, WeDLMModel


def load_checkpoint(
    name: str | os.PathLike,
    dtype: str = "auto",
    device: str | None = None,
    *,
    only_decodes: bool = False,
    or_stock: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads a WeDLM checkpoint, or a draft adapter with its base. None of the code beside the weights is run.

        model, tokenizer = load_checkpoint("tencent/WeDLM-8B-Instruct", dtype="bfloat16", device="cuda")

    With `or_stock` it may be another causal language model of transformers or a GGUF file. Such a model, and one with
    a draft adapter, decodes verified by default. The layers of a model that `only_decodes` are fused. Whatever is in
    the way is a `CheckpointError`.
    """
    folder, adapter = wedlm_folder(name, with_weights=True, or_stock=or_stock), draft_adapter(name)
    is_in_blocks = is_gguf(folder)
    is_wedlm = not is_in_blocks and read_config(name, folder).get("model_type") == MODEL_TYPE
    if is_wedlm:
        read_wedlm_config(read_config(name, folder), name)
    if device is not None and device.partition(":")[0] == "meta":
        raise CheckpointError("The device 'meta' holds no weights; choose another, such as 'cpu'.")
    device = device or ("cuda" if torch.cuda.is_available() and not is_in_blocks else "cpu")
    if is_in_blocks and torch.device(device).type != "cpu":
        raise CheckpointError(f"A GGUF file is for a CPU, and the device is {device!r}; leave --device out.")
    logging.disable_progress_bar()
    with Console(stderr=True).status(f"Loading {name}"):
        if is_in_blocks:
            model, tokenizer = load_gguf(folder, dtype="float32" if dtype == "auto" else dtype)
        else:
            tokenizer = load_tokenizer(folder, name)
            model = read_model(AutoModelForCausalLM, name, folder, dtype=dtype)
        if adapter is not None and not is_wedlm:
            model = with_adapter_of_peft(model, adapter)
        elif adapter is not None:
            attach_adapter(model, adapter)
        if adapter is not None:
            if read_generation_fields(adapter):
                model.generation_config = GenerationConfig.from_pretrained(adapter)
            else:
                model.generation_config.decoding = "verified"
        for parameter, default in (DEFAULTS | {"decoding": "verified"}).items():
            if not hasattr(model.generation_config, parameter):  # a WeDLM has all
                setattr(model.generation_config, parameter, default)
        try:
            model = model.to(device).eval()
        except (RuntimeError, AssertionError) as error:  # an unknown device, one that torch lacks, or no room on it
            raise CheckpointError(
                f"{name} cannot be put on the device {device!r} ({one_line(error)}); choose another, such as 'cpu'."
            ) from error
        for weight in model.parameters():
            if weight.device.type == "cpu":  # or it would be the file itself, which may become shorter or another
                weight.data = weight.data.clone()
    check_generation_config(name, model)
    can_be_fused = any(type(layer).__name__ in CLASSES for _, layer in decoder_layers(model))
    return (fuse(model) if only_decodes and can_be_fused else model), tokenizer


def read_model(kind: type, name: str | os.PathLike, folder: Path, **arguments: Any) -> PreTrainedModel:
    """The model that `kind.from_pretrained()` makes of a folder; weights that are missing or do not fit are refused.

    `kind` is a class of models, or of transformers' Auto classes, and `name` the checkpoint's name in a refusal.
    """
    fields = read_config(name, folder)
    if fields.get("mask_shift"):  # A config.json of an I-DLM need not say it.
        arguments["mask_shift"] = True
    if (model_type := fields.get("model_type")) not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{name} is of model_type {model_type!r}, which transformers {version('transformers')} does not know; "
            "update transformers, or choose another checkpoint."
        )
    read_generation_fields(folder)
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # transformers writes a report of many lines about what is refused below
    try:
        model, loading = kind.from_pretrained(
            folder,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **arguments,
        )
    except Exception as error:  # wrong files raise errors of many kinds
        raise CheckpointError(
            f"{name} cannot be loaded ({one_line(error)}); correct it, or copy or download it again."
        ) from error
    finally:
        logging.set_verbosity(before)
    if missing := sorted(loading["missing_keys"]):
        raise CheckpointError(
            f"{name} lacks the weight {missing[0]} ({len(missing)} in all); copy or download it again."
        )
    if others := sorted(loading["mismatched_keys"]):
        weight, found, wanted = others[0]
        raise CheckpointError(
            f"The weight {weight} of {name} is {list(found)}, and by its config {list(wanted)} ({len(others)} such "
            "weights in all); correct one of the two."
        )
    return model


@torch.no_grad()
def check_generation_config(name: str | os.PathLike, model: PreTrainedModel) -> None:
    """Refuses a generation_config.json with values of wrong types, which transformers reads as they are."""
    prompt = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    scores = torch.zeros(1, text_config_of(model).vocab_size, device=model.device)
    for do_sample in (False, True):
        try:
            with suppress(ValueError):  # generate() says it, and its caller may pass another value
                config = resolved_generation_config(model, do_sample=do_sample)
                config.get_generation_mode()
                processors_of(model, config, prompt)(prompt, scores)
        except Exception as error:  # wrong types raise errors of many kinds
            raise CheckpointError(
                f"{GENERATION_FILE} of {name} has a value that generate() cannot work with "
                f"({type(error).__name__}: {one_line(error)}); correct it."
            ) from error


# --- Draft adapters ---


class NativeAdapter(NamedTuple):
    """A draft adapter in the form that the model itself has."""

    drafts: dict[str, Any]  # of the config
    tensors: dict[str, torch.Tensor]  # by name in `WeDLMModel`


def with_adapter_of_peft(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    try:
        from peft import PeftModel

        return PeftModel.from_pretrained(model, folder).get_base_model()  # with the adapter in its layers
    except (ImportError, OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise unusable_adapter(folder, error) from error


def unusable_adapter(folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{folder} cannot be used as a draft adapter of this model ({one_line(error)}); give the adapter of this "
        "model, or copy it again."
    )


def attach_adapter(model: WeDLMForCausalLM, folder: Path) -> None:
    """Adds the draft adapter in a folder to a model, whose config describes it afterwards."""
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
    """A draft adapter as the weight files of its base hold it: by name in `WeDLMForCausalLM`, in the base's dtype."""
    adapter = native_adapter(folder, model, fingerprint_of_files(shards, model.config))
    embedding = next(shard.tensors[EMBEDDING] for shard in shards if EMBEDDING in shard.tensors)
    dtype = model.config.dtype or getattr(torch, DTYPES[embedding.dtype])
    return adapter._replace(tensors={f"model.{name}": value.to(dtype) for name, value in adapter.tensors.items()})


def native_adapter(folder: Path, model: WeDLMForCausalLM, base_fingerprint: Fingerprint) -> NativeAdapter:
    """Reads a draft adapter, and refuses one that does not fit the model, whose weights may be missing."""
    if model.config.drafts is not None:
        raise CheckpointError(f"The model has a draft adapter already; load its base anew, and then add {folder}.")
    try:
        fields = adapter_fields(folder)
        if fields.get("peft_type") != DRAFT_TYPE:
            raise ValueError(f"its peft_type is {fields.get('peft_type')!r}, that of draft adapters {DRAFT_TYPE!r}")
        scale = fields["lora_alpha"] / fields["r"]
        tensors = {native_name(name): tensor for name, tensor in load_file(folder / ADAPTER_WEIGHTS).items()}
        check_base(base_fingerprint, fields)
        config = copy(model.config)
        config.require_mask_token_id()
        config.drafts = described_drafts(fields)
        check_shapes(tensors, config)
        scaled = {name: value * scale if name.endswith(".up") else value for name, value in tensors.items()}
        if broken := [name for name, value in scaled.items() if not value.isfinite().all()]:
            raise ValueError(f"{broken[0]} holds values that are not finite, {len(broken)} such weights in all")
    except (OSError, SafetensorError, ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        raise unusable_adapter(folder, error) from error
    return NativeAdapter(config.drafts, scaled)


def check_shapes(given: dict[str, torch.Tensor], config: WeDLMConfig) -> None:
    """Compares the weights of a draft adapter with those that a model of this config has for it."""
    with torch.device("meta"):
        parameters = WeDLMModel(config).named_parameters()
    wanted = {name: tuple(value.shape) for name, value in parameters if name == "mask_embedding" or ".drafts." in name}
    found = {name: tuple(value.shape) for name, value in given.items()}
    for name in wanted | found:
        if found.get(name) != wanted.get(name):
            raise ValueError(f"{name} has the shape {found.get(name)} and should have {wanted.get(name)}")


def native_name(name: str) -> str:
    """The name in `WeDLMModel` of a weight of PEFT's files, as layers.0.mlp.drafts.up_proj.down."""
    name = name.removeprefix("base_model.model.model.").removesuffix(".weight")
    if name == "embed_tokens.lora_mask":
        return "mask_embedding"
    name = re.sub(r"\.(\w+)\.lora_A$", r".drafts.\1.down", name)
    return re.sub(r"\.(\w+)\.lora_B$", r".drafts.\1.up", name)

"""Model and tokenizer of a WeDLM checkpoint, or one sentence that says why it cannot be had."""

import os
import re
from pathlib import Path

import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, logging

from wedlm.checkpoints.conversion_error import ConversionError
from wedlm.checkpoints.convert import COMPANIONS, STOCK_CONFIGS, one_line
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.shards import INDEX_FILE, SINGLE_FILE, read_json, shard_names
from wedlm.modeling_wedlm.configuration_wedlm import MODEL_TYPE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

TOKENIZER_FILES = ("tokenizer.json", "vocab.json")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: one sentence with the remedy, to be shown as it is."""


def load_checkpoint(
    name: str | os.PathLike, dtype: str = "auto", device: str | None = None
) -> tuple[WeDLMForCausalLM, PreTrainedTokenizerBase]:
    """Loads a WeDLM checkpoint from a folder or from the Hub, on the GPU if there is one; none of its code is run.

        model, tokenizer = load_checkpoint("tencent/WeDLM-8B-Instruct", dtype="bfloat16", device="cuda")

    Whatever is in the way raises a CheckpointError.
    """
    folder = checkpoint_folder(name, with_weights=True)
    require_wedlm(name, read_config(name, folder))
    check_weights(name, folder)
    require_tokenizer(name, folder)
    if device is not None and device.partition(":")[0] == "meta":
        raise CheckpointError("The device 'meta' holds no weights; choose another, such as 'cpu'.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    logging.disable_progress_bar()
    with Console(stderr=True).status(f"Loading {name}"):
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model, loading = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
        except Exception as error:  # of many kinds, by what is wrong with the files
            raise CheckpointError(
                f"{name} cannot be loaded ({one_line(error)}); correct it, or copy or download it again."
            ) from error
        if missing := sorted(loading["missing_keys"]):
            raise CheckpointError(
                f"{name} lacks the weight {missing[0]} ({len(missing)} in all); copy or download it again."
            )
        try:
            return model.to(device).eval(), tokenizer
        except (RuntimeError, AssertionError) as error:  # no such device, none built in, or no room on it
            raise CheckpointError(
                f"{name} cannot be put on the device {device!r} ({one_line(error)}); choose another, such as 'cpu'."
            ) from error


def checkpoint_folder(name: str | os.PathLike, with_weights: bool) -> Path:
    """The folder of a checkpoint; one on the Hub is downloaded first, with its weights or without."""
    if not str(name):
        raise CheckpointError("The name of the checkpoint is empty; give a folder, or a name on the Hub.")
    if Path(name).is_dir():
        return Path(name)
    if Path(name).exists():
        raise CheckpointError(f"{name} is a file; give the folder of a checkpoint.")
    if Path(name) == DEMO_FOLDER:
        raise CheckpointError(
            f"The demo checkpoint is not at {name}; give the folder of another one, or a name on the Hub."
        )
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
        raise CheckpointError(
            f"{name} does not exist; give the folder of a checkpoint, or a name on the Hub such as "
            "tencent/WeDLM-8B-Instruct."
        )
    weights = [SINGLE_FILE, "model-*.safetensors"] if with_weights else []
    try:
        patterns = ["config.json", "README.md", INDEX_FILE, *COMPANIONS, *weights]
        return Path(snapshot_download(str(name), allow_patterns=patterns))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{name} is no folder here and was not downloaded before, and {constants.ENDPOINT}/{name} cannot be "
            f"reached ({one_line(error.__cause__ or error)}); connect to the network, or give a folder."
        ) from error
    except Exception as error:  # of any kind: the Hub's, the network's, the disk's
        raise CheckpointError(
            f"{name} is no folder here, and cannot be had from {constants.ENDPOINT}/{name} ({one_line(error)}); "
            "correct the name, or give a folder."
        ) from error


def read_config(name: str | os.PathLike, folder: Path) -> dict:
    if not (folder / "config.json").exists():
        if (folder / "adapter_config.json").exists():
            raise CheckpointError(f"{name} is an adapter; `wedlm merge {name} OUT` makes a whole checkpoint of it.")
        raise CheckpointError(f"{name} has no config.json, so it is no checkpoint; give the folder of one.")
    try:
        return read_json(folder / "config.json")
    except ConversionError as error:
        raise CheckpointError(str(error)) from error


def check_weights(name: str | os.PathLike, folder: Path) -> None:
    try:
        missing = [file for file in shard_names(folder) if not (folder / file).is_file()]
    except ConversionError as error:
        raise CheckpointError(str(error)) from error
    if missing:
        raise CheckpointError(
            f"{name} lacks its weights ({', '.join(missing)}); copy or download them (weights in other formats than "
            "safetensors are not read)."
        )


def require_tokenizer(name: str | os.PathLike, folder: Path) -> None:
    if not any((folder / file).exists() for file in TOKENIZER_FILES):
        raise CheckpointError(
            f"{name} has no tokenizer (neither {' nor '.join(TOKENIZER_FILES)}); copy it from the model that the "
            "checkpoint was made of."
        )


def require_wedlm(name: str | os.PathLike, config: dict) -> None:
    model_type = config.get("model_type")
    if model_type != MODEL_TYPE:
        raise CheckpointError(
            f"{name} is of model_type {model_type!r}, and this needs WeDLM; {remedy(name, model_type)}."
        )


def remedy(name: str | os.PathLike, model_type: str | None) -> str:
    """What the owner of a checkpoint that is not WeDLM can do."""
    if model_type in STOCK_CONFIGS:
        return f"`wedlm convert {name} OUT` makes a WeDLM checkpoint of it"
    return "`wedlm convert` makes WeDLM checkpoints of Qwen2, Qwen2.5 and Qwen3"

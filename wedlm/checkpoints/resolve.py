"""Finds the files of checkpoints and adapters, in a folder or on the Hub, and says what is missing."""

import math
import os
import re
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from wedlm.checkpoints.demo_folder import REAL_MODEL
from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.idlm import SDAR, wedlm_fields
from wedlm.checkpoints.shards import INDEX_FILE, check_weights, read_json, shard_names
from wedlm.generation.parameters import is_count
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

HUB_NAME = r"[\w-][\w.-]*/[\w.-]+"
STOCK_FAMILIES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "llama": "Llama", "mistral": "Mistral"}  # by model_type
CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
FROM_MODEL = "_from_model_config"  # if it is true there, transformers reads no parameter of parallel decoding from it
ADAPTER_FILE, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DRAFT_TYPE = "WEDLM_DRAFT"  # of draft adapters in adapter_config.json
TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
# Files that go along with the weights and the config, as patterns of names. No code is among them: each checkpoint
# that is written gets the code of this package.
OF_A_TOKENIZER = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
)  # fmt: skip
COMPANIONS = (GENERATION_FILE, *OF_A_TOKENIZER, "LICENSE*", "NOTICE*")
SMALL_FILES = (CONFIG_FILE, ADAPTER_FILE, "README.md", INDEX_FILE, *COMPANIONS)

# --- Folders, files and downloads ---


def is_gguf(name: str | os.PathLike) -> bool:
    return str(name).endswith(".gguf")


def gguf_path(name: str | os.PathLike, gguf_file: str | None = None) -> Path:
    """The path of a GGUF file, which is downloaded if `name` is one on the Hub.

    Without `gguf_file` the name of a repository and that of the file may be one: OWNER/NAME/FILE.gguf.
    """
    path = Path(name) if gguf_file is None else Path(name, gguf_file)
    if path.is_file():
        return path
    match = re.fullmatch(rf"({HUB_NAME})/(.+)", str(name) if gguf_file is None else f"{name}/{gguf_file}")
    if match is None or Path(name).exists():
        raise CheckpointError(
            f"{path} is not a file; give the path of a GGUF file, or a name on the Hub as OWNER/NAME/FILE.gguf."
        )
    repository, file = match.groups()
    try:
        return Path(hf_hub_download(repository, file))
    except Exception as error:  # the Hub, the network and the disk raise errors of many kinds
        raise CheckpointError(
            f"{path} is not a file here, and {file} of {repository} cannot be downloaded from {constants.ENDPOINT} "
            f"({one_line(error)}); correct the name, or give the path of a file."
        ) from error


def checkpoint_folder(name: str | os.PathLike, with_weights: bool) -> Path:
    """Returns the folder of a checkpoint; of one on the Hub, the small files or all are downloaded first."""
    if not str(name):
        raise CheckpointError("The name of the checkpoint is empty; give a folder, or a name on the Hub.")
    if Path(name).is_dir():
        return Path(name)
    if is_gguf(name):
        raise CheckpointError(
            f"{name} is a GGUF file, which `wedlm generate`, `chat`, `compare`, `trace`, `serve`, `eval`, `tune` and "
            "`info` take; give the folder of a checkpoint, as `wedlm.unfuse(model).save_pretrained()` writes one."
        )
    if Path(name).exists():
        raise CheckpointError(f"{name} is a file; give the folder of a checkpoint.")
    if not re.fullmatch(rf"{HUB_NAME}|[\w-][\w.-]*", str(name)):  # models such as gpt2 have names without an owner
        raise CheckpointError(
            f"{name} does not exist; give the folder of a checkpoint, or a name on the Hub such as "
            "tencent/WeDLM-8B-Instruct."
        )
    folder = download(name, list(SMALL_FILES))
    return download_weights(name, folder) if with_weights else folder


def wedlm_folder(name: str | os.PathLike, with_weights: bool, or_stock: bool = False) -> Path:
    """Returns the folder of a WeDLM checkpoint, with `or_stock` that of another one or a GGUF file.

    A draft adapter stands for its base. What cannot be loaded is refused, and weights are downloaded after that.
    """
    name = checkpoint_of(name)
    if is_gguf(name) and or_stock:
        return gguf_path(name)
    folder = checkpoint_folder(name, with_weights=False)
    fields = read_config(name, folder)
    if not or_stock:
        require_wedlm(name, fields)
    require_tokenizer(name, folder)
    if with_weights:
        folder = download_weights(name, folder)
    if with_weights or Path(name).is_dir():
        check_weights(name, folder)
    return folder


def download_weights(name: str | os.PathLike, folder: Path) -> Path:
    """Downloads the weights that belong to the small files in `folder`; a local folder is returned as it is."""
    if Path(name).is_dir():
        return folder
    # In the Hub's cache a folder is named by its commit.
    return download(name, [*SMALL_FILES, *shard_names(folder)], revision=folder.name)


def download(name: str | os.PathLike, patterns: list[str], revision: str | None = None) -> Path:
    try:
        return Path(snapshot_download(str(name), revision=revision, allow_patterns=patterns))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"{name} is not a folder here and was not downloaded before, and {constants.ENDPOINT}/{name} cannot be "
            f"reached ({one_line(error.__cause__ or error)}); connect to the network, or give a folder."
        ) from error
    except Exception as error:  # the Hub, the network and the disk raise errors of many kinds
        raise CheckpointError(
            f"{name} is not a folder here, and cannot be downloaded from {constants.ENDPOINT}/{name} "
            f"({one_line(error)}); correct the name, or give a folder."
        ) from error


# --- The content of a folder ---


def read_config(name: str | os.PathLike, folder: Path) -> dict:
    """The fields of config.json; those of an I-DLM as a WeDLM has them."""
    if (folder / CONFIG_FILE).exists():
        fields = read_json(folder / CONFIG_FILE)
        if not isinstance(model_type := fields.get("model_type"), str | None):
            raise CheckpointError(
                f"model_type={one_line(repr(model_type))} in {folder / CONFIG_FILE} is not a name; correct it, or "
                "copy or download the checkpoint again."
            )
        return wedlm_fields(fields, name) if model_type == SDAR else fields
    if (folder / ADAPTER_FILE).exists():
        if has_draft_type(folder):
            raise CheckpointError(f"{name} is a draft adapter, and a checkpoint is wanted; give the adapter's base.")
        raise CheckpointError(f"{name} is an adapter; `wedlm merge {name} OUT` makes a whole checkpoint of it.")
    raise CheckpointError(f"{name} has no config.json, so it is not a checkpoint; give the folder of one.")


def read_generation_fields(folder: Path) -> dict:
    """The fields of generation_config.json; none where the file is missing."""
    path = folder / GENERATION_FILE
    fields = read_json(path) if path.exists() else {}
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if (ids := fields.get(name)) is None:
            continue
        if not all(type(each) is int for each in (ids if isinstance(ids, list) else [ids])):
            raise CheckpointError(f"{name}={one_line(repr(ids))} in {path} is not a token id; correct it.")
    return fields


def with_verified_decoding(generation_fields: dict) -> dict:
    return generation_fields | {"decoding": "verified", FROM_MODEL: False}


def require_tokenizer(name: str | os.PathLike, folder: Path) -> None:
    if not any((folder / file).exists() for file in TOKENIZER_FILES):
        raise CheckpointError(
            f"{name} has no tokenizer (neither {' nor '.join(TOKENIZER_FILES)}); copy the tokenizer of the model that "
            "the checkpoint was made from."
        )


def require_wedlm(name: str | os.PathLike, fields: dict) -> None:
    if (model_type := fields.get("model_type")) != MODEL_TYPE:
        what = how_to_convert(name, model_type)
        if model_type not in STOCK_FAMILIES:
            what += "; other causal models are decoded as they are by `wedlm generate`, `chat`, `compare` and `serve`"
        raise CheckpointError(f"{name} is of model_type {model_type!r}, and this needs WeDLM; {what}.")


def require_own_format(name: str | os.PathLike, folder: Path) -> None:
    """Refuses to train an I-DLM whose config.json is not that of a WeDLM, which PEFT and the Trainer read again."""
    if read_json(folder / CONFIG_FILE).get("model_type") == SDAR:
        raise CheckpointError(
            f"{name} is an I-DLM in its own format, and a WeDLM alone can be trained; give OUT of `wedlm convert "
            f"{name} OUT`."
        )


def how_to_convert(name: str | os.PathLike, model_type: str | None) -> str:
    """Tells the owner of a checkpoint that is not WeDLM how to get one, as the end of a sentence."""
    if model_type in STOCK_FAMILIES:
        return f"`wedlm convert {name} OUT` makes a WeDLM checkpoint of it"
    return f"`wedlm convert` makes WeDLM checkpoints of {families()}"


def families() -> str:
    """The names of the stock architectures, for sentences."""
    *names, last = STOCK_FAMILIES.values()
    return f"{', '.join(names)} and {last}"


# --- Adapters ---


def draft_adapter(name: str | os.PathLike) -> Path | None:
    """Returns the folder of a draft adapter with its weights; None if the name is not one of a draft adapter."""
    if is_gguf(name):
        return None
    folder = checkpoint_folder(name, with_weights=False)
    if (folder / CONFIG_FILE).exists() or not has_draft_type(folder):
        return None
    adapter_fields(folder)
    return folder if Path(name).is_dir() else download(name, [*SMALL_FILES, ADAPTER_WEIGHTS], revision=folder.name)


def has_draft_type(folder: Path) -> bool:
    try:
        return read_json(folder / ADAPTER_FILE).get("peft_type") == DRAFT_TYPE
    except CheckpointError:
        return False


def adapter_fields(folder: Path) -> dict:
    """Returns the content of the adapter_config.json of a draft adapter, and refuses values of wrong types."""
    fields = read_json(folder / ADAPTER_FILE)
    rank, alpha, modules = (fields.get(name) for name in ("r", "lora_alpha", "target_modules"))
    is_list_of_names = isinstance(modules, list) and all(type(each) is str for each in modules)
    for name, is_right, meaning in (
        ("r", is_count(rank) and rank <= 2**16, "an integer from 1 to 65536"),
        ("lora_alpha", type(alpha) in (int, float) and math.isfinite(alpha), "a finite number"),
        ("target_modules", is_list_of_names, "a list of names"),
    ):
        if not is_right:
            raise CheckpointError(
                f"{name}={one_line(repr(fields.get(name)))} in {folder / ADAPTER_FILE} is not {meaning}; correct it, "
                "or copy the adapter again."
            )
    return fields


def described_drafts(fields: dict) -> dict:
    """The entry `drafts` of the config of a WeDLM that contains the draft adapter with these fields."""
    shift = {"mask_shift": True} if fields.get("mask_shift") else {}
    return {"rank": fields["r"], "modules": sorted(fields["target_modules"]), **shift}


def checkpoint_of(name: str | os.PathLike) -> str | os.PathLike:
    """Returns the base of a draft adapter, and any other name as it is."""
    return name if draft_adapter(name) is None else base_of(name)


def base_of(adapter: str | os.PathLike) -> str:
    """Returns the checkpoint that an adapter of PEFT was trained on: a folder, or a name on the Hub."""
    try:
        is_on_hub = not Path(adapter).exists() and re.fullmatch(HUB_NAME, str(adapter))
        file = Path(hf_hub_download(str(adapter), ADAPTER_FILE) if is_on_hub else Path(adapter) / ADAPTER_FILE)
        fields = read_json(file)
        base = fields["base_model_name_or_path"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{adapter} is not an adapter of PEFT ({one_line(error)}); give the folder it was saved to."
        ) from error
    reason = f"{base!r} is not a name"
    if base and isinstance(base, str):
        if Path(base).is_dir() or is_gguf(base) and Path(base).is_file():
            return base
        if fields.get("peft_type") == DRAFT_TYPE:  # which is refused in any other base than its own
            for parent in file.resolve().parents if Path(adapter).is_dir() else ():
                if (parent / base).is_dir():
                    return str(parent / base)
        if re.fullmatch(HUB_NAME, base):
            return base
        reason = f"there is no folder {Path(base).absolute()}"
    made = ", which `make real-model` makes in a clone of the repository wedlm," if base == REAL_MODEL else ""
    raise CheckpointError(
        f"The checkpoint {base}, which {adapter} was trained on, cannot be loaded ({reason}); put it{made} there, or "
        "correct base_model_name_or_path in adapter_config.json."
    )

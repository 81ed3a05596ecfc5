"""The weight files of a checkpoint: checked by their headers, and copied with more or fewer rows."""

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors import SafetensorError, safe_open

from wedlm.checkpoints.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}  # names in torch
NUM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}


class Tensor(NamedTuple):
    dtype: str  # one of `DTYPES`
    shape: list[int]

    def num_bytes(self) -> int:
        return math.prod(self.shape) * NUM_BYTES[self.dtype]


class Shard(NamedTuple):
    """What the header of a weight file says."""

    path: Path
    metadata: dict[str, str] | None
    tensors: dict[str, Tensor]

    def num_bytes(self) -> int:
        return sum(tensor.num_bytes() for tensor in self.tensors.values())


def read_json(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); copy or download it again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object; copy or download it again.")
    return content


def read_index(folder: Path) -> dict | None:
    """The index of a sharded checkpoint; None where one file holds all weights. The shards may be missing."""
    if (folder / SINGLE_FILE).exists() or not (folder / INDEX_FILE).exists():
        return None
    index = read_json(folder / INDEX_FILE)
    weight_map, metadata = index.get("weight_map"), index.get("metadata") or {}
    if not isinstance(weight_map, dict) or not weight_map or not isinstance(metadata, dict):
        raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map, or odd metadata; copy or download it again.")
    for name in weight_map.values():
        # The file may be a link out of the folder, as all files in the Hub's cache are, but its name no path.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{folder / INDEX_FILE} names the shard {name!r}, which is not a safetensors file inside the folder; "
                "correct the index, or download the checkpoint again."
            )
    return {**index, "metadata": metadata}


def shard_names(folder: Path) -> list[str]:
    """The names of a checkpoint's weight files, which may be missing."""
    index = read_index(folder)
    return [SINGLE_FILE] if index is None else sorted(set(index["weight_map"].values()))


def check_weights(source: object, folder: Path) -> None:
    """Refuses a checkpoint whose weight files are missing; `source` is its name in the message."""
    if missing := [name for name in shard_names(folder) if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{source} lacks its weights ({', '.join(missing)}); copy or download them (only safetensors are read; "
            "load pickled ones that you trust with AutoModelForCausalLM.from_pretrained(..., use_safetensors=False), "
            "and save_pretrained() them)."
        )


def read_shards(folder: Path) -> list[Shard]:
    """Reads the headers of all weight files, and compares them with the index."""
    check_weights(folder, folder)
    shards = [read_shard(folder / name) for name in shard_names(folder)]
    index = (read_index(folder) or {"weight_map": {}})["weight_map"]
    for name in dict.fromkeys([*index, *(name for shard in shards for name in shard.tensors)]):
        files = [shard.path.name for shard in shards if name in shard.tensors]
        found = " and ".join(files) or "no file"
        if name in index and files != [index[name]]:
            raise CheckpointError(
                f"{folder / INDEX_FILE} says that {name} lies in {index[name]}, and it lies in {found}; copy or "
                "download the checkpoint again."
            )
        if len(files) > 1:
            raise CheckpointError(f"{name} of {folder} lies in {found}; copy or download the checkpoint again.")
    return shards


def read_shard(path: Path) -> Shard:
    try:
        with safe_open(path, framework="np") as file:  # it checks the header
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            tensors = {name: Tensor(each.get_dtype(), each.get_shape()) for name, each in slices.items()}
            metadata = file.metadata()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); allow it, or copy it again.") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} is cut short or damaged ({error}); copy or download it again.") from error
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise CheckpointError(
                f"{name} in {path} is of type {tensor.dtype}, and only {', '.join(DTYPES)} are supported; start "
                "from the checkpoint as it was before quantization."
            )
    return Shard(path, metadata, tensors)


def write_shard(shard: Shard, path: Path, num_rows: dict[str, int], added: "dict[str, torch.Tensor]") -> None:
    """Copies a weight file with other numbers of rows, by name of the tensor, and with the tensors `added`.

    A tensor that has more rows loses the last ones; a tensor that has one row less gains the mean of its rows.
    """
    if not added and not num_rows.keys() & shard.tensors.keys():
        shutil.copyfile(shard.path, path)
        return
    from safetensors.torch import load_file, save_file  # here, so that a checkpoint is checked without torch

    tensors = load_file(shard.path) | added
    for name in num_rows.keys() & tensors.keys():
        tensors[name] = with_rows(tensors[name], num_rows[name])
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, shard.metadata)
    except SafetensorError as error:  # also of a full disk
        raise OSError(f"{path}: {error}") from error
    path.chmod(mode)  # save_file makes a file that its owner alone can read


def with_rows(weight: "torch.Tensor", num_rows: int) -> "torch.Tensor":
    import torch

    if num_rows <= len(weight):
        return weight[:num_rows]
    total = sum(part.double().sum(dim=0) for part in weight.split(4096))  # in parts, for the memory
    return torch.cat([weight, (total / len(weight)).to(weight.dtype)[None]])

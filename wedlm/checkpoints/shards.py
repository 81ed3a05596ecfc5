"""Safetensors files as headers and bytes, so that weights are checked and copied without being loaded."""

import json
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


class Shard(NamedTuple):
    """One weight file: 8 bytes with the length of the header, the header in JSON, and the bytes of the tensors."""

    path: Path
    metadata: dict[str, str] | None
    tensors: dict[str, dict]  # dtype, shape and data_offsets by name, in the order of the header
    data_start: int  # where the bytes of the tensors begin
    num_bytes: int  # of the file

    def in_file_order(self) -> list[str]:
        return sorted(self.tensors, key=lambda name: self.tensors[name]["data_offsets"])


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
                f"{folder / INDEX_FILE} names the shard {name!r}, which is no safetensors file inside the folder; "
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
        with safe_open(path, framework="np"):  # the library checks the header
            num_bytes = path.stat().st_size
        with open(path, "rb") as file:
            header_length = int.from_bytes(file.read(8), "little")
            tensors = json.loads(file.read(header_length))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}); allow it, or copy it again.") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} is cut short or damaged ({error}); copy or download it again.") from error
    metadata = tensors.pop("__metadata__", None)
    for name, tensor in tensors.items():
        if tensor["dtype"] not in DTYPES:
            raise CheckpointError(
                f"{name} in {path} is of type {tensor['dtype']}, and only {', '.join(DTYPES)} are supported; start "
                "from the checkpoint as it was before quantization."
            )
    return Shard(path, metadata, tensors, 8 + header_length, num_bytes)


def new_header(shard: Shard, num_rows: dict[str, int], added: "dict[str, torch.Tensor]") -> bytes:
    """The header of the file that `write_shard` writes."""
    tensors, offset = {name: dict(tensor) for name, tensor in shard.tensors.items()}, 0
    for name in shard.in_file_order():
        tensor = tensors[name]
        start, stop = tensor["data_offsets"]
        num_bytes = stop - start
        if name in num_rows:
            rows, *others = tensor["shape"]
            num_bytes = num_bytes // rows * num_rows[name]
            tensor["shape"] = [num_rows[name], *others]
        tensor["data_offsets"] = [offset, offset + num_bytes]
        offset += num_bytes
    codes = {name: code for code, name in DTYPES.items()}
    for name, value in added.items():
        code, stop = codes[str(value.dtype).removeprefix("torch.")], offset + value.nbytes
        tensors[name] = {"dtype": code, "shape": list(value.shape), "data_offsets": [offset, stop]}
        offset = stop
    header = {} if shard.metadata is None else {"__metadata__": shard.metadata}
    text = json.dumps(header | tensors, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text


def write_shard(shard: Shard, path: Path, num_rows: dict[str, int], added: "dict[str, torch.Tensor]") -> None:
    """Copies a weight file with other numbers of rows, by name of the tensor, and the tensors `added` behind its own.

    A tensor that has more rows loses the last ones; a tensor that has one row less gains the mean of its rows.
    """
    if not added and not num_rows.keys() & shard.tensors.keys():
        shutil.copyfile(shard.path, path)
        return
    with open(shard.path, "rb") as source, open(path, "wb") as target:
        target.write(new_header(shard, num_rows, added))
        for name in shard.in_file_order():
            tensor = shard.tensors[name]
            start, stop = tensor["data_offsets"]
            source.seek(shard.data_start + start)
            content = bytearray(stop - start)
            if source.readinto(content) != len(content):
                raise CheckpointError(f"{shard.path} became shorter while it was read; copy or download it again.")
            if name in num_rows:
                rows = tensor["shape"][0]
                target.write(memoryview(content)[: len(content) // rows * min(rows, num_rows[name])])
                if num_rows[name] > rows:
                    target.write(mean_row(content, tensor))
            else:
                target.write(content)
        for value in added.values():
            target.write(bytes_of(value))


def mean_row(content: bytearray, tensor: dict) -> bytes:
    import torch  # here, so that a checkpoint is checked without it

    dtype, (rows, width) = getattr(torch, DTYPES[tensor["dtype"]]), tensor["shape"]
    values = torch.frombuffer(content, dtype=dtype).view(rows, width)
    total = sum(part.double().sum(dim=0) for part in values.split(4096))  # in parts, for the memory
    return bytes_of((total / rows).to(dtype))


def bytes_of(value: "torch.Tensor") -> bytes:
    import torch

    return value.flatten().view(torch.uint8).numpy().tobytes()

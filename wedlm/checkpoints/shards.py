"""Safetensors files as headers and bytes, so that weights are checked and copied without being loaded."""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from wedlm.checkpoints.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLED_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
MAX_HEADER_BYTES = 100_000_000  # as the library has it
CHUNK_BYTES = 16 * 2**20


class Dtype(NamedTuple):
    name: str  # in torch
    itemsize: int


DTYPES = {
    "BF16": Dtype("bfloat16", 2),
    "F16": Dtype("float16", 2),
    "F32": Dtype("float32", 4),
    "F64": Dtype("float64", 8),
}
CODES = {dtype.name: code for code, dtype in DTYPES.items()}


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
    """The index of a checkpoint in shards; None where one file holds all weights. The shards may be missing."""
    if (folder / SINGLE_FILE).exists() or not (folder / INDEX_FILE).exists():
        return None
    index = read_json(folder / INDEX_FILE)
    weight_map, metadata = index.get("weight_map"), index.get("metadata") or {}
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map; copy or download it again.")
    if not isinstance(metadata, dict) or not all(
        isinstance(metadata.get(name, 0), int) for name in ("total_size", "total_parameters")
    ):
        raise CheckpointError(f"{folder / INDEX_FILE} has metadata={metadata!r}; copy or download it again.")
    for name in weight_map.values():
        # A name may be a link out of the folder, as all names in the Hub's cache are, but not a path out of it.
        if not isinstance(name, str) or Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{folder / INDEX_FILE} names the shard {name!r}, which is no safetensors file inside the folder; "
                "correct the index, or download the checkpoint again."
            )
    return {**index, "metadata": metadata}


def shard_names(folder: Path) -> list[str]:
    """The names of a checkpoint's weight files, which may be missing."""
    index = read_index(folder)
    return [SINGLE_FILE] if index is None else sorted(set(index["weight_map"].values()))


def read_shards(folder: Path) -> list[Shard]:
    """Reads the headers of all weight files, and checks them against the index and the sizes of the files."""
    names = shard_names(folder)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing == [SINGLE_FILE]:
        pickled = [name for name in PICKLED_FILES if (folder / name).exists()]
        if pickled:
            raise CheckpointError(
                f"{folder} has only pickled weights ({pickled[0]}), and safetensors are wanted, because pickles run "
                "code; if you trust the file, load them with AutoModelForCausalLM.from_pretrained(..., "
                "use_safetensors=False) and save_pretrained() them first."
            )
        raise CheckpointError(
            f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}, and safetensors are wanted; if its weights are "
            "pickled (.bin) and you trust them, load them with AutoModelForCausalLM.from_pretrained(..., "
            "use_safetensors=False) and save_pretrained() them first."
        )
    if missing:
        raise CheckpointError(
            f"{folder} lacks {', '.join(missing)}, which its index lists; copy or download the missing files."
        )
    shards = [read_shard(folder / name) for name in names]
    places = {}
    for shard in shards:
        for name in shard.tensors:
            if name in places:
                raise CheckpointError(
                    f"{name} stands in both {places[name]} and {shard.path.name} of {folder}; save it again."
                )
            places[name] = shard.path.name
    if (index := read_index(folder)) is not None:
        for name, place in index["weight_map"].items():
            if places.get(name) != place:
                raise CheckpointError(
                    f"{folder / INDEX_FILE} says that {name} lies in {place}, and it does not; copy or download the "
                    "checkpoint again."
                )
    return shards


def read_shard(path: Path) -> Shard:
    try:
        num_bytes = path.stat().st_size
        with open(path, "rb") as file:
            header_length = int.from_bytes(file.read(8), "little")
            if header_length > MAX_HEADER_BYTES:
                raise ValueError(f"its header has {header_length} bytes, and safetensors allows {MAX_HEADER_BYTES}")
            header = file.read(header_length) if header_length <= num_bytes - 8 else b""
        tensors = json.loads(header)
        metadata = tensors.pop("__metadata__", None)
        if not isinstance(metadata, dict | None) or not all(type(each) is str for each in (metadata or {}).values()):
            raise ValueError(f"its __metadata__ is {metadata!r}, and safetensors allows texts alone")
        for name, tensor in tensors.items():
            start, stop = tensor["data_offsets"]
            if tensor["dtype"] not in DTYPES:
                raise CheckpointError(
                    f"{name} in {path} is of type {tensor['dtype']}, and only {', '.join(DTYPES)} are supported; "
                    "start from the checkpoint as it was before quantization."
                )
            if stop - start != math.prod(tensor["shape"]) * DTYPES[tensor["dtype"]].itemsize:
                raise ValueError(f"{name} has a wrong number of bytes")
        shard = Shard(path, metadata, tensors, 8 + header_length, num_bytes)
        expected = shard.data_start
        for name in shard.in_file_order():
            start, stop = tensors[name]["data_offsets"]
            if shard.data_start + start != expected:
                raise ValueError(f"{name} does not follow the tensor before it")
            expected = shard.data_start + stop
        if expected != num_bytes:
            raise ValueError(f"it has {num_bytes} bytes instead of {expected}")
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); allow it, or copy it again.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is cut short or damaged ({error}); copy or download it again.") from error
    return shard


def new_header(shard: Shard, num_rows: dict[str, int], added: "dict[str, torch.Tensor]") -> tuple[bytes, int]:
    """The header of the file that `write_shard` writes, and the number of bytes behind it."""
    tensors, offset = {name: dict(tensor) for name, tensor in shard.tensors.items()}, 0
    for name in shard.in_file_order():
        tensor = tensors[name]
        if name in num_rows:
            tensor["shape"] = [num_rows[name], *tensor["shape"][1:]]
        length = math.prod(tensor["shape"]) * DTYPES[tensor["dtype"]].itemsize
        tensor["data_offsets"] = [offset, offset + length]
        offset += length
    for name, value in added.items():
        code, stop = CODES[str(value.dtype).removeprefix("torch.")], offset + value.nbytes
        tensors[name] = {"dtype": code, "shape": list(value.shape), "data_offsets": [offset, stop]}
        offset = stop
    header = {} if shard.metadata is None else {"__metadata__": shard.metadata}
    text = json.dumps(header | tensors, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text, offset


def num_bytes_after(shard: Shard, num_rows: dict[str, int], added: "dict[str, torch.Tensor]") -> int:
    """The size of the file that `write_shard` writes."""
    if not added and not num_rows.keys() & shard.tensors.keys():
        return shard.num_bytes
    header, num_bytes = new_header(shard, num_rows, added)
    return len(header) + num_bytes


def read_chunks(file: BinaryIO, num_bytes: int, chunk_bytes: int) -> Iterator[bytes]:
    while num_bytes > 0:
        chunk = file.read(min(chunk_bytes, num_bytes))
        if not chunk:
            raise CheckpointError(f"{file.name} became shorter while it was read; copy or download it again.")
        num_bytes -= len(chunk)
        yield chunk


def mean_row(file: BinaryIO, tensor: dict) -> bytes:
    """The mean of a tensor's rows, which are read from the position of `file`."""
    import torch  # here, so that a checkpoint is checked without it

    dtype, (num_rows, width) = getattr(torch, DTYPES[tensor["dtype"]].name), tensor["shape"]
    row_bytes = width * dtype.itemsize
    total = torch.zeros(width, dtype=torch.float64)
    for chunk in read_chunks(file, num_rows * row_bytes, max(1, CHUNK_BYTES // 4 // row_bytes) * row_bytes):
        total += torch.frombuffer(bytearray(chunk), dtype=dtype).view(-1, width).double().sum(dim=0)
    return bytes((total / num_rows).to(dtype).view(torch.uint8).tolist())


def bytes_of(value: "torch.Tensor") -> bytes:
    import torch

    return value.flatten().view(torch.uint8).numpy().tobytes()


def write_shard(
    shard: Shard,
    path: Path,
    num_rows: dict[str, int],
    added: "dict[str, torch.Tensor]",
    progress: Callable[[int], object],
) -> None:
    """Copies a shard with other numbers of rows, and further tensors behind its own.

    Args:
        shard (`Shard`): The file to copy.
        path (`Path`): The file to write.
        num_rows (`dict[str, int]`): The new number of rows of some tensors, by name. A tensor that has more rows
            loses the last ones; a tensor that has one row less gains the mean of its rows.
        added (`dict[str, torch.Tensor]`): The further tensors by name.
        progress (`Callable`): Called with the number of bytes of each chunk that was written.
    """

    def put(chunk: bytes) -> None:
        target.write(chunk)
        progress(len(chunk))

    with open(shard.path, "rb") as source, open(path, "wb") as target:
        if not added and not num_rows.keys() & shard.tensors.keys():
            for chunk in read_chunks(source, shard.num_bytes, CHUNK_BYTES):
                put(chunk)
            return
        put(new_header(shard, num_rows, added)[0])
        for name in shard.in_file_order():
            start, stop = shard.tensors[name]["data_offsets"]
            num_bytes, is_longer = stop - start, False
            if name in num_rows:
                rows = shard.tensors[name]["shape"][0]
                num_bytes, is_longer = num_bytes // rows * min(rows, num_rows[name]), num_rows[name] > rows
            source.seek(shard.data_start + start)
            for chunk in read_chunks(source, num_bytes, CHUNK_BYTES):
                put(chunk)
            if is_longer:
                source.seek(shard.data_start + start)
                put(mean_row(source, shard.tensors[name]))
        for value in added.values():
            put(bytes_of(value))

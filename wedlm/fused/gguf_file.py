"""A GGUF file: its header, every number of which is checked, and its tensors where they lie."""

import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

ALIGNMENT = "general.alignment"
# The types of values, as the format numbers them.
NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"
}  # fmt: skip
STRING, ARRAY = 8, 9
MOST_LETTERS = 200  # of a name
MOST_ENTRIES = 2**22  # of an array, which takes many times its bytes in Python


class BlockType(NamedTuple):
    """How weights lie in a file: by blocks of `length` of them, in `size` bytes."""

    name: str
    length: int
    size: int


BLOCK_TYPES = {  # as the format numbers them
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    30: BlockType("BF16", 1, 2),
}
ARCHITECTURES = {"llama": "Llama and Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma 3"}
OTHERS = {  # for refusals
    10: "Q2_K", 11: "Q3_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"
}  # fmt: skip


class Value(NamedTuple):
    """A value of the header as gguf's own reader gives it, with which transformers reads configs and tokenizers."""

    types: list[int]
    parts: list[Any]

    @property
    def data(self) -> range:
        return range(len(self.parts))


class TensorInfo(NamedTuple):
    """A tensor of a file."""

    name: str
    type: BlockType
    shape: tuple[int, ...]  # as torch counts, the inputs of a linear layer last
    start: int  # in the file
    num_bytes: int


class GgufFile:
    """A GGUF file that is open.

    It stays the file that it was, also when another one takes its place. Whoever writes into it or cuts it changes or
    breaks the models that use it.

    Raises:
        `ValueError`: where the file is none, or damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:  # a folder, or an empty file
            raise ValueError(f"{path} cannot be read ({error}); give a GGUF file.") from error
        try:
            self.fields, self.tensors = Header(self.memory).read()
        except HeaderError as error:
            raise ValueError(
                f"{path} is not a complete GGUF file ({error}); download it again, or give another."
            ) from None
        except UnknownType as error:
            raise ValueError(
                f"{path} holds {error}, which is not known here; download the model in Q4_0, Q4_K_M, Q5_K_M, Q6_K or "
                "Q8_0."
            ) from None

    def value(self, name: str) -> Any:
        """A string or a number of the header; None if it is missing or an array."""
        value = self.fields.get(name)
        if value is None or value.types[0] == ARRAY:
            return None
        (part,) = value.parts
        return part.decode() if value.types[0] == STRING else part[0]

    def rows(self, info: TensorInfo) -> "torch.Tensor":
        """The bytes of a tensor where they lie: `[..., bytes of a row]`."""
        import torch

        whole = torch.frombuffer(self.memory, dtype=torch.uint8, count=info.num_bytes, offset=info.start)
        return whole.view(*info.shape[:-1], -1)


def check_architecture(file: GgufFile) -> str:
    architecture = file.value("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"{file.path} is of the architecture {repr(architecture)[:MOST_LETTERS]}, and those of "
            f"{', '.join(ARCHITECTURES.values())} are known; load it with transformers."
        )
    return architecture


class HeaderError(Exception):
    """What is wrong with a header, as a part of a sentence."""


class UnknownType(Exception):
    """A type of blocks that nobody here knows."""


class Header:
    """Reads the header of a file from its first byte on; no number in it is believed."""

    def __init__(self, memory: mmap.mmap):
        self.memory, self.at = memory, 0

    def read(self) -> tuple[dict[str, Value], dict[str, TensorInfo]]:
        magic, (version,) = self.bytes(4), self.numbers("<I", 1)
        if magic != b"GGUF":
            raise HeaderError("it does not begin with GGUF")
        if version not in (2, 3):
            raise HeaderError(f"its version is {version}, and only 2 and 3 are known")
        num_tensors, num_values = self.numbers("<Q", 2)
        fields: dict[str, Value] = {}
        for _ in range(num_values):
            name = self.name("the name of a value")
            (kind,) = self.numbers("<I", 1)
            fields[name] = self.value(name, kind)
        (alignment,) = fields[ALIGNMENT].parts[0] if ALIGNMENT in fields else (32,)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise HeaderError(f"{ALIGNMENT} is {alignment!r}")
        infos = [self.tensor() for _ in range(num_tensors)]
        start = -(-self.at // alignment) * alignment
        tensors = {info.name: info._replace(start=start + info.start) for info in infos}
        if len(tensors) < len(infos):
            raise HeaderError("two of its tensors have the same name")
        for info in tensors.values():
            if info.start + info.num_bytes > len(self.memory):
                raise HeaderError(f"it ends before its tensor {info.name}")
        return fields, tensors

    def bytes(self, number: int) -> bytes:
        if number > len(self.memory) - self.at:
            raise HeaderError("it ends within its header")
        self.at += number
        return self.memory[self.at - number : self.at]

    def numbers(self, form: str, number: int) -> tuple:
        return struct.unpack(f"<{number}{form[1]}", self.bytes(struct.calcsize(form) * number))

    def text(self, what: str) -> str:
        try:
            return self.bytes(*self.numbers("<Q", 1)).decode()
        except UnicodeDecodeError:
            raise HeaderError(f"{what} is not text") from None

    def name(self, what: str) -> str:
        name = self.text(what)
        if len(name) > MOST_LETTERS or not name.isprintable():
            raise HeaderError(f"{what} is not a name")
        return name

    def value(self, name: str, kind: int) -> Value:
        if kind == ARRAY:
            of, number = *self.numbers("<I", 1), *self.numbers("<Q", 1)
            if number > MOST_ENTRIES:
                raise HeaderError(f"{name} has {number:,} entries")
            return Value([ARRAY, of], self.parts(name, of, number))
        return Value([kind], self.parts(name, kind, 1))

    def parts(self, name: str, kind: int, number: int) -> list[Any]:
        if kind in NUMBERS:
            return [(value,) for value in self.numbers(NUMBERS[kind], number)]
        if kind != STRING:
            raise HeaderError(f"{name} has the unknown type {kind}")
        return [self.text(name).encode() for _ in range(number)]

    def tensor(self) -> TensorInfo:
        name = self.name("the name of a tensor")
        (num_sizes,) = self.numbers("<I", 1)
        if not 1 <= num_sizes <= 4:
            raise HeaderError(f"its tensor {name} has {num_sizes} dimensions")
        sizes = self.numbers("<Q", num_sizes)
        (kind,), (start,) = self.numbers("<I", 1), self.numbers("<Q", 1)
        if kind not in BLOCK_TYPES:
            raise UnknownType(f"{name} in {OTHERS.get(kind, f'the type {kind}')}")
        block = BLOCK_TYPES[kind]
        if sizes[0] % block.length:
            raise HeaderError(f"its tensor {name} has rows of {sizes[0]} weights, no whole blocks of {block.length}")
        num_bytes = block.size
        for size in (sizes[0] // block.length, *sizes[1:]):
            num_bytes *= size
        if num_bytes == 0:
            raise HeaderError(f"its tensor {name} is empty")
        return TensorInfo(name, block, tuple(reversed(sizes)), start, num_bytes)

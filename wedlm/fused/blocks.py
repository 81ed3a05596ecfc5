"""Rows of weights in GGUF's blocks, and how they become numbers."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from wedlm.fused import native
from wedlm.fused.gguf_file import BLOCK_TYPES

BLOCKS = {block.name: block for block in BLOCK_TYPES.values()}
CHUNK = 2**22  # weights that are numbers at a time, where many rows are multiplied
TYPES = {torch.float32: 0, torch.bfloat16: 1}  # as kernels.h numbers them


class Packed(NamedTuple):
    """Rows of weights in blocks."""

    rows: torch.Tensor  # [rows, bytes], uint8
    type: str  # one of BLOCKS
    order: torch.Tensor | None = None  # which of the rows comes at each place, int32

    @property
    def inputs(self) -> int:
        block = BLOCKS[self.type]
        return self.rows.shape[1] // block.size * block.length

    def described(self) -> native.Weights:
        """The rows as C reads them, which holds addresses only."""
        return native.Weights(
            rows=self.rows.data_ptr(),
            order=0 if self.order is None else self.order.data_ptr(),
            count=len(self.rows),
            type=native.TYPES.index(self.type),
        )

    def is_for_c(self) -> bool:
        return native.NUMBER is not None and self.rows.is_cpu and self.inputs % 32 == 0

    def numbers(
        self, dtype: torch.dtype, places: slice | torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The weights in some rows, `[rows, inputs]`; written to `out`, if that is given."""
        if not self.rows.is_cpu:
            raise ValueError(
                f"The weights of this model lie in GGUF's blocks, which a CPU multiplies, and are on "
                f"{self.rows.device}; move wedlm.unfuse(model) there, whose weights are numbers."
            )
        if isinstance(places, slice):
            start, stop, _ = places.indices(len(self.rows))
            first, number, indices = start, stop - start, None
        else:
            first, number, indices = 0, len(places), places.to(torch.int64).contiguous()
        if number == 0:
            return torch.empty(0, self.inputs, dtype=dtype)
        if not self.is_for_c():
            numbers = self.numbers_by_gguf(dtype, places if indices is None else indices)
            return numbers if out is None else out.copy_(numbers)
        of_kernel = dtype if dtype in TYPES else torch.float32
        is_written = out is not None and out.dtype == of_kernel
        numbers = out if is_written else torch.empty(number, self.inputs, dtype=of_kernel, device="cpu")
        described = self.described()
        native.unpack(
            native.Unpacking(
                weights=native.addressof(described), places=0 if indices is None else indices.data_ptr(),
                to=numbers.data_ptr(), first=first, rows=number, inputs=self.inputs, type=TYPES[of_kernel],
                threads=torch.get_num_threads(), set=native.NUMBER,
            )
        )  # fmt: skip
        if is_written or out is None:
            return numbers if of_kernel == dtype else numbers.to(dtype)
        return out.copy_(numbers)

    def numbers_by_gguf(self, dtype: torch.dtype, places: slice | torch.Tensor) -> torch.Tensor:
        """Without C, by the package gguf."""
        from gguf import GGMLQuantizationType, dequantize

        if isinstance(places, torch.Tensor) and not 0 <= places.min() <= places.max() < len(self.rows):
            raise IndexError("An index is not a row of the weights.")
        rows = self.rows[places] if self.order is None else self.rows[self.order[places].long()]
        if self.type in ("F32", "F16", "BF16"):
            plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[self.type]
            return rows.contiguous().view(plain).to(dtype)
        numbers = dequantize(rows.numpy(), GGMLQuantizationType[self.type])
        return torch.from_numpy(numbers).to(dtype)

    def chunks(self) -> Iterator[slice]:
        """Parts of the rows, each with CHUNK weights."""
        size = max(CHUNK // self.inputs, 1)
        for start in range(0, len(self.rows), size):
            yield slice(start, min(start + size, len(self.rows)))

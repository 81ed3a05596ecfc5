"""y = x W^T: on a CPU for a few rows in C, where that was compiled, otherwise by torch."""

import threading

import torch
from torch.nn.functional import linear, rms_norm, silu

from wedlm.fused import native
from wedlm.fused.blocks import CHUNK, TYPES, Packed
from wedlm.generation.transformers_internals import has_onednn, onednn_linear

TAKES_ONEDNN = native.is_amd() and has_onednn()
WIDENS_BFLOAT16 = native.widens_bfloat16()
MOST_ROWS = 64  # more rows are left to torch
MOST_WIDTH = 256  # of the heads that C knows


class Product:
    """The product with a linear layer's weights, with an RMS norm before it and an activation behind it.

    `weight` is `[outputs, inputs]`, or a list of weights in blocks, up to three, one below the other. With `is_gated`
    the product is silu(first half) * second half. In rows whose input is MASK, the two products `draft` are added, one
    behind the other.
    """

    def __init__(self, weight: torch.Tensor | list[Packed], bias=None, norm=None, is_gated=False, draft=None):
        self.weight, self.bias, self.is_gated, self.draft = weight, bias, is_gated, draft
        self.norm_module, self.norm = norm, None if norm is None else norm.weight.detach()
        self.is_packed = isinstance(weight, list)
        self.inputs = weight[0].inputs if self.is_packed else weight.shape[1]
        self.outputs = sum(map(len, self.tensors)) // (2 if is_gated else 1)
        self.dtypes: tuple[torch.dtype, ...] = ()  # of inputs that are multiplied in C
        if norm is not None and norm.weight.shape != (self.inputs,):
            return
        if self.is_packed:
            self.dtypes = tuple(TYPES) if all(each.is_for_c() for each in weight) else ()
        elif native.NUMBER is not None and weight.is_cpu and weight.is_contiguous() and weight.numel() > 0:
            self.dtypes = (weight.dtype,) if weight.dtype in TYPES else ()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Where the weights lie."""
        return [each.rows for each in self.weight] if self.is_packed else [self.weight]

    @property
    def epsilon(self) -> float:
        return 0.0 if self.norm_module is None else self.norm_module.variance_epsilon

    def described(self) -> native.Product:
        """The product as C reads it. It holds addresses only, so the tensors have to live as long."""
        described = native.Product(
            inputs=self.inputs, outputs=self.outputs, bias=address(self.bias), norm=address(self.norm),
            is_gated=self.is_gated, epsilon=self.epsilon,
        )  # fmt: skip
        if self.is_packed:
            described.weights[: len(self.weight)] = [each.described() for each in self.weight]
        else:
            described.weights[0] = native.Weights(
                rows=address(self.weight), count=len(self.weight), type=TYPES[self.weight.dtype]
            )
        if self.draft is not None:
            described.drafts = [each.described() for each in self.draft]  # ctypes keeps no reference of its own
            described.down, described.up = map(native.addressof, described.drafts)
        return described

    def __call__(self, x, added=None, is_text=None) -> torch.Tensor:
        """The product with `x`, `[..., inputs]`.

        Before the activation `added`, `[..., outputs]`, is added and, in rows that are not `is_text`, `[..., 1]`, the
        draft.
        """
        is_compiling = torch.compiler.is_compiling()
        takes_kernel = 0 < x.numel() <= MOST_ROWS * self.inputs and x.dtype in self.dtypes
        takes_kernel = takes_kernel and x.shape[-1] == self.inputs and x.is_cpu
        if takes_kernel and not is_compiling and self.tensors[0].data_ptr():  # no memory: torch says so
            return self.by_kernel(x, added, is_text)
        if self.norm is not None:
            x = normed(x, self.norm, self.epsilon)
        low = None
        if self.draft is not None and is_text is not None:
            low = self.draft[0].by_torch(x).masked_fill(is_text, 0)
            if takes_kernel or is_compiling:
                added, low = self.draft[1].by_torch(low, added), None
        if takes_kernel or is_compiling and self.is_packed:
            orders = [each.order for each in self.weight] if self.is_packed else []
            types = [each.type for each in self.weight] if self.is_packed else []
            return compiled_product(x, self.tensors, orders, ",".join(types), self.bias, added, self.is_gated)
        return self.by_torch(x, added, low)

    def by_kernel(self, x, added=None, is_text=None):
        return by_kernel(self.described(), x, self.outputs, added, is_text)

    def by_torch(self, x, added=None, low=None):
        """The product without the norm; `low` is what the second product of a draft takes."""
        if self.is_packed:
            y = product_of_blocks(x, self.weight)
            y = y if self.bias is None else y + self.bias
        else:
            y = linear_of_many(x, self.weight, self.bias)
        if low is not None:
            up = self.draft[1].weight
            y.view(-1, len(up)).addmm_(low.view(-1, up.shape[1]), up.T)
        y = y if added is None else y + added
        return gated(y) if self.is_gated else y


def normed(x: torch.Tensor, norm: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The RMS norm of rows."""
    fits = (norm.shape, norm.dtype, norm.device) == (x.shape[-1:], x.dtype, x.device)
    if fits and x.shape[-1] % 32 == 0 and are_for_c(x):  # C writes whole vectors
        return rows_by_kernel(x, x.shape[-1], norm=address(norm), epsilon=epsilon)
    return rms_norm(x, x.shape[-1:], norm, epsilon)


def gated(x: torch.Tensor) -> torch.Tensor:
    """silu(first half) * second half of rows."""
    if x.shape[-1] % 64 == 0 and are_for_c(x):
        return rows_by_kernel(x, x.shape[-1] // 2, is_gated=True)
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up


def are_for_c(x: torch.Tensor) -> bool:
    """Whether C takes such rows."""
    is_known = x.is_cpu and x.dtype in (torch.float32, torch.bfloat16) and x.numel() > 0
    return is_known and native.NUMBER is not None and not (torch.is_grad_enabled() or torch.compiler.is_compiling())


def rows_by_kernel(x: torch.Tensor, width: int, **options) -> torch.Tensor:
    """What a product makes of its rows before or behind the multiplication, which has `options`: `[..., width]`."""
    product = native.Product(inputs=width, outputs=width, **options)
    product.weights[0].type = native.NO_WEIGHTS
    return by_kernel(product, x, width)


def by_kernel(product: native.Product, x, outputs: int, added=None, is_text=None) -> torch.Tensor:
    """What C makes of these rows: `[..., outputs]`."""
    x, added, is_text = (None if each is None else each.contiguous() for each in (x, added, is_text))
    y = x.new_empty((*x.shape[:-1], outputs))
    native.multiply(
        native.Multiplication(
            product=native.addressof(product), x=x.data_ptr(), added=address(added), y=y.data_ptr(),
            is_text=address(is_text), rows=y.numel() // outputs, type=TYPES[x.dtype],
            threads=torch.get_num_threads(), set=native.NUMBER,
        )
    )  # fmt: skip
    return y


def linear_of_many(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The product of many rows, of bfloat16 by float32 where that takes a fraction of the time.

    A few rows take as long as reading the weights, of which float32 has twice the bytes.
    """
    widens = WIDENS_BFLOAT16 and x.dtype == weight.dtype == torch.bfloat16 and x.numel() > MOST_ROWS * x.shape[-1]
    if widens and weight.is_cpu and is_for_other_products(x):
        return widened(x, weight, bias)
    return linear_by_library(x, weight, bias)


def linear_by_library(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """In float32 on AMD by oneDNN, where MKL takes twice as long."""
    if TAKES_ONEDNN and x.dtype == weight.dtype == torch.float32 and weight.is_cpu and is_for_other_products(x):
        return onednn_linear(x, weight, bias)
    return linear(x, weight, bias)


def is_for_other_products(x: torch.Tensor) -> bool:
    """Whether x is multiplied by other products than torch's, which have no backward."""
    return x.is_cpu and x.numel() > 0 and not (torch.is_grad_enabled() or torch.compiler.is_compiling())


def widened(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A product of bfloat16 by products of float32, with some rows of weights at a time."""
    numbers = x.float()
    parts = [
        linear_by_library(numbers, MEMORY.of(*rows.shape, torch.float32).copy_(rows))
        for rows in weight.split(max(CHUNK // weight.shape[1], 1))
    ]
    y = torch.cat(parts, dim=-1)
    return (y if bias is None else y.add_(bias)).to(x.dtype)


class Memory(threading.local):
    """Where weights of a thread become numbers: pages of memory that was new took longer than the numbers."""

    numbers = torch.empty(0)

    def of(self, rows: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
        if self.numbers.dtype != dtype or self.numbers.numel() < rows * inputs:
            with torch.inference_mode(False):  # others may write to it later, in any mode
                self.numbers = torch.empty(rows * inputs, dtype=dtype)
        return self.numbers[: rows * inputs].view(rows, inputs)


MEMORY = Memory()


def product_of_blocks(x: torch.Tensor, weights: list[Packed]) -> torch.Tensor:
    """The product of many rows with weights that become numbers some rows at a time.

    In float32 twice the rows of one call of C take less time in two.
    """
    if WIDENS_BFLOAT16 and x.dtype == torch.bfloat16 and is_for_other_products(x):
        return product_of_blocks(x.float(), weights).to(x.dtype)
    rows = x.numel() // x.shape[-1]
    if MOST_ROWS < rows <= 2 * MOST_ROWS and x.dtype == torch.float32 and native.has_avx512() and are_for_c(x):
        halves = x.reshape(rows, -1).split((rows + 1) // 2)
        y = torch.cat([Product(weights).by_kernel(half) for half in halves])
        return y.view(*x.shape[:-1], -1)
    total, size = sum(len(each.rows) for each in weights), max(CHUNK // x.shape[-1], 1)
    parts = []
    for start in range(0, total, size):
        numbers = MEMORY.of(min(size, total - start), x.shape[-1], x.dtype)
        place = -start  # in `numbers`, of the rows of each weight
        for each in weights:
            first, end = max(place, 0), min(place + len(each.rows), len(numbers))
            if first < end:
                each.numbers(x.dtype, slice(first - place, end - place), numbers[first:end])
            place += len(each.rows)
        parts.append(linear_of_many(x, numbers))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@torch.library.custom_op("wedlm::product", mutates_args=())
def compiled_product(
    x: torch.Tensor,
    weights: list[torch.Tensor],
    orders: list[torch.Tensor | None],
    types: str,
    bias: torch.Tensor | None,
    added: torch.Tensor | None,
    is_gated: bool,
) -> torch.Tensor:
    """A product as an operator that torch.compile takes as it is. `types` are those of blocks, if there are any."""
    packed = [Packed(*each) for each in zip(weights, types.split(","), orders, strict=True)] if types else weights[0]
    return Product(packed, bias, None, is_gated)(x, added)


@compiled_product.register_fake
def _(x, weights, orders, types, bias, added, is_gated):
    return x.new_empty((*x.shape[:-1], sum(len(each) for each in weights) // (2 if is_gated else 1)))


def rotate(
    heads, num_queries, num_rotated, cos, sin, query_norm=None, key_norm=None, query_epsilon=0.0, key_epsilon=0.0
) -> torch.Tensor:
    """The queries and keys, normed where there are weights for that, and rotated.

    `heads`, `[batch, queries, heads, head_dim]`, are those of queries, keys and values. The first `num_queries` are
    queries, and the first `num_rotated` are rotated by `cos` and `sin`, `[batch, queries, head_dim]`.
    """
    width, rotated = heads.shape[-1], heads[:, :, :num_rotated]
    if query_norm is not None:
        query, key = rotated.split((num_queries, num_rotated - num_queries), dim=2)
        query = rms_norm(query, (width,), query_norm, query_epsilon)
        rotated = torch.cat((query, rms_norm(key, (width,), key_norm, key_epsilon)), dim=2)
    first, second = rotated.chunk(2, dim=-1)
    return torch.addcmul(rotated * cos[:, :, None], torch.cat((-second, first), dim=-1), sin[:, :, None])

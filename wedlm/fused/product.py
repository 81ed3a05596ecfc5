"""y = x W^T for a few rows: by product.c on a CPU where it was compiled, otherwise by torch."""

import torch
from torch.nn.functional import linear, rms_norm, silu

from wedlm.fused.instruction_set import NUMBER, _product

MOST_ROWS = 32  # more rows are left to torch
MOST_WIDTH = 256  # of heads that product.c rotates
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}  # as product.c numbers them


class Product:
    """The product with a linear layer's weights, with an RMS norm before it and an activation behind it.

    `weight` is `[outputs, inputs]`, in int8 with `scales`, `[outputs]`. With `is_gated` the product is
    silu(first half) * second half.
    """

    def __init__(self, weight, bias=None, norm=None, is_gated=False, scales=None):
        self.weight, self.bias, self.is_gated, self.scales = weight, bias, is_gated, scales
        self.norm_module, self.norm = norm, None if norm is None else norm.weight.detach()
        self.inputs, self.outputs = weight.shape[1], len(weight) // (2 if is_gated else 1)
        self.dtypes = ()  # of inputs that product.c multiplies
        if NUMBER is not None and weight.device.type == "cpu" and weight.dtype in TYPES and weight.is_contiguous():
            self.dtypes = (torch.float32, torch.bfloat16) if weight.dtype == torch.int8 else (weight.dtype,)
        self.plans = {}  # by the dtype of the input and the epsilon of the norm

    @property
    def epsilon(self) -> float:
        return 0.0 if self.norm_module is None else self.norm_module.variance_epsilon

    def plan(self, dtype: torch.dtype) -> bytes:
        key = dtype, self.epsilon
        if key not in self.plans:
            shape = (self.inputs, self.outputs, TYPES[self.weight.dtype], dtype == torch.bfloat16, self.is_gated)
            tensors = (self.weight, self.scales, self.bias, self.norm)
            self.plans[key] = _product.plan(self.epsilon, NUMBER, *shape, *map(address, tensors))
        return self.plans[key]

    def __call__(self, x, added=None, draft=None, is_text=None) -> torch.Tensor:
        """The product with `x`, `[..., inputs]`.

        Before the activation `added`, `[..., outputs]`, is added and, in rows that are not `is_text`, `[..., 1]`, the
        two products `draft`, one behind the other.
        """
        is_compiling = torch.compiler.is_compiling()
        takes_kernel = 0 < x.numel() <= MOST_ROWS * self.inputs and x.dtype in self.dtypes
        takes_kernel = takes_kernel and x.shape[-1] == self.inputs and x.is_cpu
        if takes_kernel and not is_compiling:
            return self.by_kernel(x, added, draft, is_text)
        if self.norm is not None:
            x = rms_norm(x, x.shape[-1:], self.norm, self.epsilon)
        if draft is not None:
            down, up = draft
            added = up.by_torch(down.by_torch(x).masked_fill(is_text, 0), added)
        if takes_kernel:
            return compiled_product(x, self.weight, self.bias, added, self.is_gated, self.scales)
        return self.by_torch(x, added)

    def by_kernel(self, x, added=None, draft=None, is_text=None):
        x, added = x.contiguous(), None if added is None else added.contiguous()
        y = x.new_empty((*x.shape[:-1], self.outputs))
        down, up = (None, None) if draft is None else (each.plan(x.dtype) for each in draft)
        is_text = None if is_text is None else is_text.contiguous()
        rows = x.numel() // self.inputs
        addresses = x.data_ptr(), address(added), y.data_ptr(), address(is_text)
        _product.product(self.plan(x.dtype), down, up, torch.get_num_threads(), rows, *addresses)
        return y

    def by_torch(self, x, added=None):
        """The product without the norm."""
        if self.scales is not None:
            y = linear(x, self.weight.to(x.dtype)) * self.scales.to(x.dtype)
            y = y if self.bias is None else y + self.bias
            y = y if added is None else y + added
        elif added is not None and self.bias is None:
            rows = added.reshape(-1, added.shape[-1]), x.reshape(-1, self.inputs)
            y = torch.addmm(*rows, self.weight.t()).view(added.shape)
        else:
            y = linear(x, self.weight, self.bias)
            y = y if added is None else y + added
        if not self.is_gated:
            return y
        gate, up = y.chunk(2, dim=-1)
        return silu(gate) * up


def address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


@torch.library.custom_op("wedlm::product", mutates_args=())
def compiled_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    added: torch.Tensor | None,
    is_gated: bool,
    scales: torch.Tensor | None,
) -> torch.Tensor:
    """A product as an operator that torch.compile takes as it is."""
    return Product(weight, bias, None, is_gated, scales).by_kernel(x, added)


@compiled_product.register_fake
def _(x, weight, bias, added, is_gated, scales):
    return x.new_empty((*x.shape[:-1], weight.shape[0] // (2 if is_gated else 1)))


def rotate(
    heads, num_queries, num_rotated, cos, sin, query_norm=None, key_norm=None, query_epsilon=0.0, key_epsilon=0.0
) -> torch.Tensor:
    """The queries and keys, normed where there are weights for that, and rotated.

    `heads`, `[batch, queries, heads, head_dim]`, are those of queries, keys and values, and may be overwritten. The
    first `num_queries` are queries, and the first `num_rotated` are rotated by `cos` and `sin`,
    `[batch, queries, head_dim]`.
    """
    batch, queries, num_heads, width = heads.shape
    rotated = heads[:, :, :num_rotated]
    is_few = NUMBER is not None and 0 < batch * queries <= MOST_ROWS and width <= MOST_WIDTH and heads.dtype in TYPES
    if is_few and heads.device.type == "cpu" and not torch.compiler.is_compiling():
        if len(cos) != batch:
            cos, sin = cos.expand(batch, -1, -1), sin.expand(batch, -1, -1)
        cos, sin = cos.contiguous(), sin.contiguous()
        shape = (batch * queries, num_queries, num_rotated, width, num_heads * width)
        addresses = (heads.data_ptr(), cos.data_ptr(), sin.data_ptr(), address(query_norm), address(key_norm))
        _product.rotate(query_epsilon, key_epsilon, heads.dtype == torch.bfloat16, *shape, *addresses)
        return rotated
    if query_norm is not None:
        query, key = rotated.split((num_queries, num_rotated - num_queries), dim=2)
        query = rms_norm(query, (width,), query_norm, query_epsilon)
        rotated = torch.cat((query, rms_norm(key, (width,), key_norm, key_epsilon)), dim=2)
    first, second = rotated.chunk(2, dim=-1)
    return torch.addcmul(rotated * cos[:, :, None], torch.cat((-second, first), dim=-1), sin[:, :, None])


def attend_few(query, keys, values, bias, scaling) -> torch.Tensor | None:
    """The attention of a few queries, `[batch, queries, heads, head_dim]`; None where product.c has none.

    What a query gets does not depend on the queries beside it. `query`, `keys` and `values` are
    `[batch, heads, positions, head_dim]`. `bias`, `[batch, 1, n, entries]`, is added to the scores, or says which
    entries are seen; the first of its n rows are those of the queries. Without it attention is causal.
    """
    batch, heads, num_queries, width = query.shape
    is_few = NUMBER is not None and 0 < batch * num_queries <= MOST_ROWS and width <= MOST_WIDTH
    if not is_few or torch.compiler.is_compiling() or bias is None and num_queries not in (1, keys.shape[2]):
        return None
    if bias is not None and ((bias.shape[1], bias.shape[3]) != (1, keys.shape[2]) or bias.shape[2] < num_queries):
        return None  # a bias for each head, or one that is broadcast
    if keys.shape != values.shape or query.dtype not in (torch.float32, torch.bfloat16):
        return None
    kind = 0 if bias is None else 1 if bias.dtype == torch.bool else 2
    tensors = [query, keys, values] if bias is None else [query, keys, values, bias]
    for tensor in tensors:
        if tensor.dtype != query.dtype and (kind != 1 or tensor is not bias):
            return None
        if tensor.stride(3) != 1 or not tensor.is_cpu or len(tensor) != batch:
            return None
    attended = query.new_empty(batch, num_queries, heads, width)
    shape = (batch, num_queries, heads, keys.shape[1], width, keys.shape[2], attended.data_ptr())
    addresses = [number for tensor in tensors for number in (tensor.data_ptr(), *tensor.stride()[:3])]
    addresses += [0] * (16 - len(addresses))
    _product.attend(scaling, torch.get_num_threads(), NUMBER, TYPES[query.dtype], kind, *shape, *addresses)
    return attended

"""Linear layers and embeddings whose weights stay in GGUF's blocks."""

import torch
from torch import nn

from wedlm.fused.blocks import Packed
from wedlm.fused.product import Product


class PackedWeight(nn.Module):
    """A layer whose weights stay in blocks, in the place of a plain one. They are not trained."""

    def take(self, packed: Packed, plain: nn.Module) -> None:
        self.type = packed.type
        self.register_buffer("weight", packed.rows)
        self.register_buffer("order", packed.order)
        plain.weight = nn.Parameter(
            torch.empty(len(packed.rows), packed.inputs, device="meta"), plain.weight.requires_grad
        )
        self.plain = [plain]  # no module of this one
        self.train(plain.training)

    @property
    def packed(self) -> Packed:
        return Packed(self.weight, self.type, self.order)

    def plain_with(self, weight: nn.Parameter) -> nn.Module:
        """The layer that this one stands for, with these weights."""
        (plain,) = self.plain
        plain.weight = weight
        return plain.train(self.training)


class PackedLinear(PackedWeight, nn.Linear):
    """A linear layer whose weights stay in blocks. Adapters around it are trained as around others."""

    def __init__(self, packed: Packed, plain: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = packed.inputs, len(packed.rows)
        self.register_parameter("bias", plain.bias)
        self.take(packed, plain)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            y = PackedProduct.apply(hidden_states, self.packed)
            return y if self.bias is None else y + self.bias
        return Product([self.packed], self.bias)(hidden_states)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, type={self.type}"


class PackedProduct(torch.autograd.Function):
    """The product with weights in blocks, which the way back unpacks once more."""

    @staticmethod
    def forward(context, x, packed):
        context.packed = packed
        return Product([packed])(x)

    @staticmethod
    def backward(context, gradient):
        packed = context.packed
        parts = (gradient[..., rows] @ packed.numbers(gradient.dtype, rows) for rows in packed.chunks())
        return sum(parts), None


class PackedEmbedding(PackedWeight, nn.Embedding):
    """An embedding whose weights stay in blocks; it gives numbers of the dtype that it is cast to."""

    def __init__(self, packed: Packed, plain: nn.Embedding, dtype: torch.dtype):
        nn.Module.__init__(self)
        for name in ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"):
            setattr(self, name, getattr(plain, name))
        self.num_embeddings, self.embedding_dim = len(packed.rows), packed.inputs
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)
        self.register_buffer("embed_scale", getattr(plain, "embed_scale", None), persistent=False)  # of Gemma
        self.take(packed, plain)

    def mean(self) -> torch.Tensor:
        """The mean of its rows."""
        sums = [self.packed.numbers(torch.float32, places).sum(0) for places in self.packed.chunks()]
        return (torch.stack(sums).sum(0) / self.num_embeddings).to(self.like.dtype)

    @torch.compiler.disable
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        numbers = self.packed.numbers(self.like.dtype, input_ids.flatten()).view(*input_ids.shape, self.embedding_dim)
        return numbers if self.embed_scale is None else numbers * self.embed_scale.to(numbers.dtype)


def refuse_saving(*args, **kwargs) -> None:
    raise ValueError(
        "The weights of this model lie in GGUF's blocks, so it cannot be saved; keep the GGUF file, or save "
        "wedlm.unfuse(model), whose weights are numbers."
    )

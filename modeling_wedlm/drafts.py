"""Draft adapters in the model: low-rank products that act where the input is MASK, and nowhere else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear


class Masked(threading.local):
    """Where the input of the forward at hand is MASK.

    Every decoder layer sets it for itself, also where gradient checkpointing runs it again, and each thread has its
    own. (Layers of PEFT take no further argument, so it cannot be passed to them.)
    """

    is_text: torch.Tensor | None  # [batch, queries, 1], False where the input is MASK; None: nowhere

    def __init__(self) -> None:
        self.is_text = None  # of each thread from its start, because compiled code notes whether it is there


MASKED = Masked()


@contextmanager
def drafts_outside(is_text: torch.Tensor | None) -> Iterator[None]:
    """Lets draft adapters act where the input is MASK.

    Args:
        is_text (`torch.BoolTensor` of shape `(batch, queries, 1)`, *optional*): False where the input is MASK; with
            None they act nowhere.
    """
    MASKED.is_text = is_text
    try:
        yield
    finally:
        MASKED.is_text = None


def are_known_to_be_true(is_text: torch.Tensor) -> bool:
    """Whether no position is MASK, so that draft adapters can be left out, where nobody has to wait to know that."""
    if is_text.device.type != "cpu" or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    return bool(is_text.all())


def only_masked(hidden_states: torch.Tensor) -> torch.Tensor:
    """Zeros wherever the input of the forward is not MASK."""
    return hidden_states.masked_fill(MASKED.is_text, 0)


class MaskedLinear(nn.Linear):
    """A linear layer that returns zeros wherever the input of the forward is not MASK."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if MASKED.is_text is None:
            return hidden_states.new_zeros(*hidden_states.shape[:-1], self.out_features)
        return only_masked(super().forward(hidden_states))


class DraftProduct(nn.Module):
    """The low-rank product that a draft adapter adds to the output of a linear layer.

    (Its matrices are no layers, so quantization leaves them alone.)

    Args:
        layer (`nn.Linear`): The layer, which may be quantized.
        rank (`int`): The rank of the product.
    """

    def __init__(self, layer: nn.Linear, rank: int):
        super().__init__()
        device = layer.weight.device
        self.down = nn.Parameter(torch.zeros(rank, layer.in_features, device=device))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank, device=device))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return linear(only_masked(linear(hidden_states, self.down)), self.up)


class WithDrafts(nn.Module):
    """A part of a layer whose linear layers may have draft products, by name in `drafts`."""

    def add_drafts(self, names: list[str], rank: int) -> None:
        """Gives those of its linear layers that are named draft products of zeros."""
        layers: dict[str, Any] = {name: layer for name, layer in self.named_children() if name in names}
        self.drafts = nn.ModuleDict({name: DraftProduct(layer, rank) for name, layer in layers.items()})

    def project(self, name: str, hidden_states: torch.Tensor) -> torch.Tensor:
        """The output of a linear layer, with its draft product where the input of the forward is MASK."""
        output = getattr(self, name)(hidden_states)
        if MASKED.is_text is None or name not in self.drafts:
            return output
        return output + self.drafts[name](hidden_states)

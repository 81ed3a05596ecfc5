"""The gate of draft adapters: they act in the positions whose input is MASK, and nowhere else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Masked(threading.local):
    """The positions of the forward at hand whose input is MASK.

    Every decoder layer sets them for itself, also where gradient checkpointing runs it again, and each thread has its
    own. (PEFT's layers take no further argument, so the positions cannot be passed to them.)
    """

    positions: torch.Tensor | None = None  # [batch, queries]


MASKED = Masked()


@contextmanager
def masked_positions(positions: torch.Tensor | None) -> Iterator[None]:
    """Lets draft adapters act in these positions.

    Args:
        positions (`torch.BoolTensor` of shape `(batch, queries)`, *optional*): True where the input is MASK; None for
            nowhere.
    """
    MASKED.positions = positions
    try:
        yield
    finally:
        MASKED.positions = None


class MaskedLinear(nn.Linear):
    """A linear layer that returns zeros for positions whose input is not MASK."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if MASKED.positions is None:
            return hidden_states.new_zeros(*hidden_states.shape[:-1], self.out_features)
        return super().forward(hidden_states).masked_fill(~MASKED.positions[..., None], 0)

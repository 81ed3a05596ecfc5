"""Bidirectional attention inside a block, which WeDLM does without: for a comparison, and outside the package."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from wedlm.modeling_wedlm import dual_stream
from wedlm.modeling_wedlm.dual_stream import PREDICTION, StreamQueries, sees


def sees_whole_block(query: StreamQueries, key: StreamQueries) -> torch.Tensor:
    """Whom a row sees under causal attention, and a prediction row besides all prediction rows of its own block."""
    of_same_block = (key.sample == query.sample) & (key.block == query.block)
    return sees(query, key) | (of_same_block & (query.stream == PREDICTION) & (key.stream == PREDICTION))


def dense_mask(rows: StreamQueries) -> torch.Tensor:
    """`[batch, 1, rows, rows]`, True where the row sees the column."""
    return sees_whole_block(rows.at(..., None), rows.at(slice(None), None))[:, None]


@contextmanager
def bidirectional_blocks() -> Iterator[None]:
    """Training with attn_implementation="sdpa" has bidirectional blocks while this lasts."""
    with patch.dict(dual_stream.FORMS, sdpa=dense_mask):
        yield

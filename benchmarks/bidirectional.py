"""Bidirectional attention inside a block, for comparison only: WeDLM does without it, and so does the package."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch

from wedlm.training import dual_stream
from wedlm.training.dual_stream import PREDICTION, StreamQueries, sees


def sees_whole_block(query: StreamQueries, key: StreamQueries) -> torch.Tensor:
    """True where `query` sees `key`: under causal attention, or as two predictions of the same block."""
    of_same_block = (key.sample == query.sample) & (key.block == query.block)
    return sees(query, key) | (of_same_block & (query.stream == PREDICTION) & (key.stream == PREDICTION))


def dense_mask(queries: StreamQueries) -> torch.Tensor:
    """`[batch, 1, queries, keys]`, True where the query sees the key."""
    return sees_whole_block(queries.at(..., None), queries.at(slice(None), None))[:, None]


@contextmanager
def bidirectional_blocks() -> Iterator[None]:
    """Within it, training with attn_implementation="sdpa" has bidirectional blocks."""
    with patch.dict(dual_stream.FORMS, sdpa=dense_mask):
        yield

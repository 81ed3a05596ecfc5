"""A cache that rows join and leave."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.generation.row_cache import RowCache
from wedlm.generation.shared_cache import Need, SharedCache


def row_of(number, length, capacity):
    """A cache of one row, whose entries say whose they are."""
    row = RowCache(1, capacity, torch.device("cpu"))
    row.begin_forward(capacity, capacity)
    for layer_idx in range(2):
        states = number + torch.arange(capacity).expand(1, 3, -1)[..., None] / 1000 + 100 * layer_idx
        row.update(states.clone(), -states, layer_idx)
    row.commit(torch.tensor([length]))
    return row


def check(cache, rows, max_tokens):
    """`rows` are (number, length, need) in the order of their places."""
    assert cache.num_rows == len(rows) and cache.lengths.tolist() == [length for _, length, _ in rows]
    assert cache.num_tokens <= max_tokens
    if not rows:
        assert cache.layers == []
    for layer_idx, layer in enumerate(cache.layers):
        assert len(layer.keys) == len(layer.values) == len(rows)
        assert layer.keys.shape[2] >= Need.of_all([need for _, _, need in rows])
        for place, (number, length, _) in enumerate(rows):
            expected = number + torch.arange(length) / 1000 + 100 * layer_idx
            assert torch.equal(layer.keys[place, 1, :length, 0], expected)
            assert torch.equal(layer.values[place, 2, :length, 0], -expected)
        assert layer.keys.isfinite().all()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(1, 70), st.integers(1, 9)), max_size=25))
@property_settings(100, deadline=None)
def test_rows_keep_their_entries_whoever_comes_and_goes(events):
    cache, rows, max_tokens = SharedCache(torch.device("cpu")), [], 400
    for number, (joins, place, length, queries) in enumerate(events):
        need = Need(length + place, queries)
        if joins and cache.num_tokens_with([need]) <= max_tokens:
            cache.join(row_of(number, length, length + 2), need, max_tokens)
            rows.append((number, length, need))
        elif rows:
            place %= len(rows)
            cache.leave(place)
            last = rows.pop()
            if place < len(rows):
                rows[place] = last
        check(cache, rows, max_tokens)


def test_the_longest_text_and_the_most_queries_may_be_those_of_two_rows():
    assert Need.of_all([Need(100, 2), Need(10, 32)]) == 132 and Need.of_all([]) == 0

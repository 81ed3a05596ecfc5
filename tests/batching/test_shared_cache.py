"""A cache whose rows come and go."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.batching.shared_cache import CacheBudget, SharedCache


def entries_of(number, begin, end):
    """Entries that say whose they are and at which position, `[1, heads, entries, 1]` for each of two layers."""
    positions = torch.arange(begin, end).expand(1, 3, -1)[..., None] / 1000
    return [(number + positions + 100 * layer_idx, -number - positions - 100 * layer_idx) for layer_idx in range(2)]


def write(cache, row, number, length):
    """Writes entries of a row from its own length on, by a forward over the row alone."""
    begin = int(cache.all_lengths[row])
    cache.activate(row, row + 1)
    cache.begin_forward(length - begin, length)
    for layer_idx, states in enumerate(entries_of(number, begin, length)):
        keys, _ = cache.update(*states, layer_idx)
        assert keys.shape == (1, 3, length, 1)
    cache.commit(torch.tensor([length - begin]))
    cache.activate()


def check(cache, rows, max_tokens):
    """`rows` are (number, length, budget) in order."""
    assert cache.num_rows == len(rows) and cache.lengths.tolist() == [length for _, length, _ in rows]
    assert cache.num_tokens <= max_tokens
    if not rows:
        assert cache.layers == []
    for layer_idx, layer in enumerate(cache.layers):
        assert len(layer.keys) == len(layer.values) == len(rows)
        assert layer.keys.shape[2] >= CacheBudget.entries_for_all([budget for _, _, budget in rows])
        assert layer.keys.isfinite().all()
        for row, (number, length, _) in enumerate(rows):
            keys, values = entries_of(number, 0, length)[layer_idx]
            assert torch.equal(layer.keys[row : row + 1, :, :length], keys)
            assert torch.equal(layer.values[row : row + 1, :, :length], values)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 70), st.integers(1, 70), st.integers(1, 9), st.sets(st.integers(0, 9))
        ),
        max_size=25,
    )
)
@property_settings(50, deadline=None)
def test_rows_keep_their_entries_whoever_comes_and_goes(events):
    cache, rows, max_tokens = SharedCache(torch.device("cpu")), [], 400
    for number, (num_new, num_known, length, queries, removed) in enumerate(events):
        budgets = [CacheBudget(length + i, queries) for i in range(num_new)]
        if budgets and cache.num_tokens_with(budgets) <= max_tokens:
            cache.add_rows(budgets, max_tokens)
            for i, budget in enumerate(budgets):
                name, row = number + i / 10, len(rows)
                num_known = min(num_known, length - 1)
                if num_known > 0:
                    cache.copy_prefix(row, entries_of(name, 0, num_known + 5), num_known)
                write(cache, row, name, length)
                rows.append((name, length, budget))
        else:
            removed = [row for row in removed if row < len(rows)]
            order = cache.remove_rows(removed)
            assert sorted(order) == [row for row in range(len(rows)) if row not in removed]
            rows = [rows[row] for row in order]
        check(cache, rows, max_tokens)


def test_memory_for_more_rows_leaves_half_of_what_is_allowed():
    for max_tokens, num_rows in ((256, 2), (255, 1), (10_000, 2)):
        cache = SharedCache(torch.device("cpu"))
        cache.add_rows([CacheBudget(60, 4)], max_tokens)
        assert cache.size == (num_rows, 64)


def test_the_longest_text_and_the_most_queries_may_be_those_of_two_rows():
    assert CacheBudget.entries_for_all([CacheBudget(100, 2), CacheBudget(10, 32)]) == 132
    assert CacheBudget.entries_for_all([]) == 0

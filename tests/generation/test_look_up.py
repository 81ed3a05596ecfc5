"""Drafts that are looked up in the text."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from reference_decoder import looked_up
from tiers import property_settings

from wedlm.generation.look_up import look_up

TEXTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=4)


@given(TEXTS, st.integers(1, 12), st.integers(1, 6), st.integers(0, 3))
@property_settings(300, deadline=None, derandomize=True)
def test_drafts_are_those_of_a_search_token_by_token(rows, num_drafts, most_matched, num_behind):
    width = max(map(len, rows))
    padded = [[-1] * (width - len(row)) + row + [9] * num_behind for row in rows]
    last = torch.full((len(rows),), width - 1)
    drafts, num_matched = look_up(torch.tensor(padded), last, num_drafts, most_matched)
    for i, row in enumerate(rows):
        expected, length = looked_up(row, num_drafts, most_matched)
        assert num_matched[i] == length
        if length:
            assert drafts[i].tolist() == expected


def test_a_text_that_repeats_itself_goes_on():
    drafts, num_matched = look_up(torch.tensor([[1, 2, 3, 1, 2, 3, 1]]), torch.tensor([6]), 7)
    assert drafts.tolist() == [[2, 3, 1, 2, 3, 1, 2]] and num_matched.tolist() == [4]


def test_rows_end_where_they_end():
    text = torch.tensor([[5, 6, 7, 5, 6, 0, 0], [-1, -1, 8, 9, 8, 9, 8]])
    drafts, num_matched = look_up(text, torch.tensor([4, 6]), 3)
    assert drafts.tolist() == [[7, 5, 6], [9, 8, 9]] and num_matched.tolist() == [2, 3]

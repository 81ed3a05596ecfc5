"""The window's tensors: runs, ends, queries behind text, rows that leave and come back, room for more slots."""

import pytest
import torch
from decoded import PARALLEL, policy_with
from helpers import MASK

from wedlm.generation.decoding import WINDOWS
from wedlm.generation.window import NO_SLOT, Text, WindowQueries

POLICY = policy_with(4, end_tokens=torch.tensor([2]))


def opened(decoding="streaming", prompt_lengths=(3, 5), max_new_tokens=10):
    return WINDOWS[decoding].opened(torch.tensor(prompt_lengths), max_new_tokens, POLICY)


def filled(window, *slots_of_rows, token=7):
    """Fills these slots of each row."""
    slots = torch.tensor([[*slots, *[0] * (10 - len(slots))] for slots in slots_of_rows])
    selected = torch.tensor([[i < len(slots) for i in range(10)] for slots in slots_of_rows])
    written = window.put_tokens(slots, selected, torch.full_like(slots, token))
    if hasattr(window, "filled"):
        window.filled.scatter_(1, written, selected)
    return window


def test_tokens_for_no_slot_change_no_slot():
    window = filled(opened(), [1], [])
    assert window.tokens[:, :10].ne(MASK).nonzero().tolist() == [[0, 1]]
    assert window.filled.nonzero().tolist() == [[0, 1]]


def test_a_run_is_what_is_filled_without_a_gap_behind_the_leading_slots():
    window = filled(opened(), [0, 1, 3], [1, 2])
    assert window.num_run(POLICY).tolist() == [2, 0]
    window.num_leading = torch.tensor([1, 1])
    assert window.num_run(POLICY).tolist() == [1, 2]
    window.start = torch.tensor([8, 9])
    assert window.num_run(POLICY).tolist() == [0, 0], "the last column is no slot"


def test_a_row_ends_with_an_end_token_in_its_run_or_at_the_limit():
    window = filled(opened(prompt_lengths=(3, 3, 3)), [0, 1, 2], [0, 2], [0])
    window = filled(window, [1], [2], [], token=2)
    num_run = window.num_run(POLICY)
    window.end_at(num_run, POLICY)
    assert window.num_tokens.tolist() == [2, 1, 1], "the end token of the second row is behind a gap"
    assert window.alive.tolist() == [False, True, True]
    window.limit = torch.tensor([10, 10, 1])
    window.end_at(num_run, POLICY)
    assert window.alive.tolist() == [False, True, False]
    window.start, window.tokens[:, -1] = torch.tensor([9, 9, 9]), 2
    window.end_at(torch.zeros_like(num_run), POLICY)
    assert window.alive.tolist() == [False, True, False], "the last column is no slot"


def test_queries_stand_behind_the_text_of_their_row():
    text = Text(torch.tensor([[11, 12, 13], [21, 0, 0]]), torch.tensor([3, 1]), torch.tensor([0, 4]))
    queries = filled(opened(prompt_lengths=(3, 5)), [1], []).queries(4, POLICY).behind(text)
    assert queries.input_ids.tolist() == [
        [11, 12, 13, 7, MASK, MASK, MASK],
        [21, MASK, MASK, MASK, MASK, MASK, MASK],
    ]
    assert queries.position_ids[0].tolist() == [0, 1, 2, 4, 3, 5, 6]
    assert queries.position_ids[1, :5].tolist() == [4, 5, 6, 7, 8]
    assert queries.num_text.tolist() == [3, 1]
    assert queries.logits_indices.tolist() == [[4, 5, 6, 6], [1, 2, 3, 4]]
    assert queries.predicted_slots[queries.is_predicted].tolist() == [0, 2, 3, 0, 1, 2, 3]


def test_what_queries_see_moves_behind_the_text():
    text = Text(torch.tensor([[11, 12]]), torch.tensor([2]), torch.tensor([0]))
    plain = WindowQueries.of_text(Text(torch.tensor([[1, 2, 3]]), torch.tensor([3]), torch.tensor([2])))
    assert plain.behind(text).visible_prefix is None
    seen = plain._replace(visible_prefix=torch.tensor([[1, 2, 1]])).behind(text).visible_prefix
    assert seen.tolist() == [[0, 0, 3, 4, 3]]


@pytest.mark.parametrize("decoding", PARALLEL)
def test_rows_that_leave_come_back_to_their_places(decoding):
    window = opened(decoding, prompt_lengths=(3, 4, 5))
    part = filled(window.select(torch.tensor([2, 0])), [1], [])
    part.forwards = part.forwards + 5
    assert part.prompt_lengths.tolist() == [5, 3]
    window.put(part)
    assert window.forwards.tolist() == [5, 0, 5] and window.tokens[:, :10].eq(7).nonzero().tolist() == [[2, 1]]
    assert window.prompt_lengths.tolist() == [3, 4, 5]


@pytest.mark.parametrize("decoding", PARALLEL)
def test_room_for_more_slots_holds_the_same(decoding):
    window = filled(opened(decoding), [0, 1], [3])
    more = window.with_room(20, window.num_columns + 3, MASK)
    for name in window.PER_SLOT:
        assert torch.equal(getattr(more, name)[:, :10], getattr(window, name)[:, :10])
    assert more.no_slot == 20 and (more.tokens[:, 10:] == MASK).all()
    back = more.with_room(10, window.num_columns + 3, MASK)
    assert torch.equal(back.tokens, window.tokens[:, :10].new_tensor(back.tokens.tolist()))
    assert torch.equal(back.tokens[:, :10], window.tokens[:, :10])


def test_the_status_names_the_first_slot_that_nothing_can_fill():
    window = opened()
    slots = torch.tensor([[0, 1, 2], [4, 5, 6]])
    is_possible = torch.tensor([[True, True, True], [True, False, False]])
    alive, num_queries, num_cached, first = window.status(slots, is_possible).tolist()
    assert (alive, num_queries, num_cached, first) == ([1, 1], [4, 4], [3, 5], [NO_SLOT, 5])


def test_committed_text_is_the_prompt_and_the_tokens_behind_it():
    window = filled(opened(prompt_lengths=(2, 3)), [0, 1], [0])
    window.start = torch.tensor([2, 1])
    text = window.committed_text(torch.tensor([[11, 12, 0], [21, 22, 23]]), 4)
    assert text.tokens.tolist() == [[11, 12, 7, 7], [21, 22, 23, 7]]
    assert text.lengths.tolist() == [4, 4] and text.positions.tolist() == [0, 0]

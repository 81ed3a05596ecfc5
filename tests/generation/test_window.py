"""The window's tensors: runs, ends, and queries behind text."""

import torch
from decoded import policy_with
from helpers import MASK

from wedlm.generation.streaming import StreamingWindow
from wedlm.generation.window import Text

POLICY = policy_with(4, end_tokens=torch.tensor([2]))


def opened(prompt_lengths=(3, 5)):
    return StreamingWindow.opened(torch.tensor(prompt_lengths), 10, POLICY)


def filled(window, *slots_of_rows, token=7):
    """Fills these slots of each row."""
    slots = torch.tensor([[*slots, *[0] * (10 - len(slots))] for slots in slots_of_rows])
    selected = torch.tensor([[i < len(slots) for i in range(10)] for slots in slots_of_rows])
    written = window.put_tokens(slots, selected, torch.full_like(slots, token))
    window.filled.scatter_(1, written, selected)
    return window


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

"""The tensors of a call: runs, ends, and queries behind text."""

import torch
from decoded import begun, settings_with
from helpers import MASK

from wedlm.generation.sequences import State, Text
from wedlm.generation.streaming import STREAMING, queries, run_of

SETTINGS = settings_with(STREAMING, 4, end_tokens=torch.tensor([2]))


def opened(prompt_lengths=(3, 5)):
    return begun(STREAMING, SETTINGS, prompt_lengths, 10)


def fill(state, *slots_of_rows, token=7):
    """Fills these slots of each row."""
    sequences, kept = state
    slots = torch.tensor([[*slots, *[0] * (10 - len(slots))] for slots in slots_of_rows])
    selected = torch.tensor([[i < len(slots) for i in range(10)] for slots in slots_of_rows])
    kept.filled.scatter_(1, sequences.write(slots, selected, torch.full_like(slots, token)), selected)
    return state


def num_filled(sequences, kept):
    return run_of(State(sequences, kept), SETTINGS)[1]


def ended(sequences, kept):
    return sequences.ended(*run_of(State(sequences, kept), SETTINGS), SETTINGS)


def test_a_run_is_what_is_filled_without_a_gap_behind_the_final_slots():
    sequences, kept = fill(opened(), [0, 1, 3], [1, 2])
    assert num_filled(sequences, kept).tolist() == [2, 0]
    sequences = sequences._replace(num_final=torch.tensor([1, 1]))
    assert num_filled(sequences, kept).tolist() == [1, 2]
    sequences = sequences._replace(num_final=torch.tensor([9, 10]))
    assert num_filled(sequences, kept).tolist() == [0, 0], "the last column is no slot"


def test_a_sequence_ends_with_an_end_token_in_its_run_or_at_the_limit():
    state = fill(opened(prompt_lengths=(3, 3, 3)), [0, 1, 2], [0, 2], [0])
    sequences, kept = fill(state, [1], [2], [], token=2)
    sequences = ended(sequences, kept)
    assert sequences.num_tokens.tolist() == [2, 1, 1], "the end token of the second row is behind a gap"
    assert sequences.is_alive.tolist() == [False, True, True]
    sequences = ended(sequences._replace(limit=torch.tensor([10, 10, 1])), kept)
    assert sequences.is_alive.tolist() == [False, True, False]
    sequences.tokens[:, -1] = 2
    sequences = ended(sequences._replace(num_final=torch.tensor([9, 9, 9])), kept)
    assert sequences.is_alive.tolist() == [False, True, False], "the last column is no slot"


def test_queries_stand_behind_the_text_of_their_row():
    text = Text(torch.tensor([[11, 12, 13], [21, 0, 0]]), torch.tensor([3, 1]), torch.tensor([0, 4]))
    got = queries(fill(opened(prompt_lengths=(3, 5)), [1], []), 4, SETTINGS).behind(text)
    assert got.input_ids.tolist() == [
        [11, 12, 13, 7, MASK, MASK, MASK],
        [21, MASK, MASK, MASK, MASK, MASK, MASK],
    ]
    assert got.position_ids[0].tolist() == [0, 1, 2, 4, 3, 5, 6]
    assert got.position_ids[1, :5].tolist() == [4, 5, 6, 7, 8]
    assert got.num_text.tolist() == [3, 1]
    assert got.logits_indices.tolist() == [[4, 5, 6, 6], [1, 2, 3, 4]]
    assert got.predicted_slots[got.is_predicted].tolist() == [0, 2, 3, 0, 1, 2, 3]

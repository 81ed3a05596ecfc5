import doctest
import math

import pytest
import torch

from wedlm.generation import position_selection
from wedlm.generation.position_selection import entropy_of, select_slots

ALL_OPEN = torch.ones(1, 4, dtype=torch.bool)


def select(entropy, slots=(0, 1, 2, 3), is_open=ALL_OPEN, threshold=0.5, penalty=0.0):
    return select_slots(torch.tensor([entropy]), torch.tensor([slots]), is_open, threshold, penalty)[0].int().tolist()


def test_entropy_is_in_nats_over_the_whole_vocabulary():
    assert entropy_of(torch.zeros(3, 7, 50)).allclose(torch.full((3, 7), math.log(50)))
    assert entropy_of(torch.tensor([0.0, math.log(3)])).item() == pytest.approx(
        -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    )
    assert entropy_of(torch.tensor([200.0, 0.0, -200.0])).item() == 0
    assert entropy_of(torch.tensor([0.0, -torch.inf, 0.0])).item() == pytest.approx(math.log(2))
    assert entropy_of(torch.randn(4, 9).bfloat16()).dtype == torch.float32


def test_every_slot_below_the_threshold_is_taken():
    assert select([0.1, 0.9, 0.2, 0.3]) == [1, 0, 1, 1]


def test_the_threshold_itself_is_not_below():
    assert select([0.5, 0.25, 0.5, 0.75]) == [0, 1, 0, 0]
    assert select([0.5, 0.5, 0.75, 0.5]) == [1, 0, 0, 0], "the least, the first on ties"


def test_without_one_below_or_without_a_threshold_the_least_is_taken():
    assert select([0.9, 0.8, 0.7, 0.8]) == [0, 0, 1, 0]
    assert select([0.1, 0.3, 0.05, 0.3], threshold=None) == [0, 0, 1, 0]
    assert select([0.3, 0.2, 0.2, 0.2], threshold=None) == [0, 1, 0, 0]
    assert select([0.0, 0.0, 0.0, 0.0], threshold=0.0) == [1, 0, 0, 0]


def test_distance_counts_slots_from_the_first_open_one():
    assert select([0.2, 0.2, 0.2, 0.2], slots=(7, 8, 10, 12), penalty=0.1) == [1, 1, 0, 0]
    assert select([0.2, 0.1, 0.2, 0.2], slots=(7, 8, 10, 12), penalty=0.2, threshold=None) == [1, 0, 0, 0]


def test_closed_slots_are_never_taken():
    is_open = torch.tensor([[True, True, False, False]])
    assert select([0.9, 0.8, 0.1, 0.0], is_open=is_open) == [0, 1, 0, 0]
    assert select([0.1, 0.8, 0.1, 0.0], is_open=is_open) == [1, 0, 0, 0]
    assert select([0.1, 0.1, 0.1, 0.1], is_open=~ALL_OPEN) == [0, 0, 0, 0]
    assert select([0.1, 0.1, 0.1, 0.1], is_open=~ALL_OPEN, threshold=None) == [0, 0, 0, 0]


def test_the_docstrings_example():
    results = doctest.testmod(position_selection, extraglobs={"torch": torch})
    assert results.attempted == 3 and results.failed == 0

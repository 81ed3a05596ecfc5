"""Calls take turns, the warm-up is not timed, and the clock waits for the device."""

from io import StringIO

import pytest
import torch
from tqdm.auto import tqdm

from wedlm.evaluation import turns
from wedlm.evaluation.turns import Turn, median_and_range, now, seconds_in_turns, take_turns, timed


@pytest.fixture
def made():
    return []


@pytest.fixture
def calls(made):
    """Each returns how many calls there were before it."""
    return {name: lambda name=name: made.append(name) or len(made) for name in "abc"}


@pytest.fixture
def clock(monkeypatch):
    """Advances by one second whenever it is read."""
    ticks = iter(range(1000))
    monkeypatch.setattr(turns.time, "perf_counter", lambda: next(ticks))


def test_every_call_has_its_turn_in_every_round(calls, made, clock):
    taken = list(take_turns(calls, "cpu", num_rounds=2))
    assert made == [*"abc", *"abc", *"abc"]
    assert taken == [Turn(name, number, 1) for number, name in enumerate("abcabc", start=4)]


def test_another_call_begins_the_timed_rounds(calls, made):
    assert [turn.name for turn in take_turns(calls, "cpu", 2, num_warm_up=1, first=1)] == [*"bca", *"bca"]
    assert made == [*"abc", *"bca", *"bca"]


def test_without_a_warm_up_the_first_round_is_timed(calls):
    assert [turn.result for turn in take_turns(calls, "cpu", 1, num_warm_up=0)] == [1, 2, 3]


def test_a_turn_is_yielded_before_the_next_call(calls, made):
    for number, turn in enumerate(take_turns(calls, "cpu", 2, num_warm_up=2), start=7):
        assert turn.result == len(made) == number


def test_seconds_are_by_name_and_round(calls, clock):
    assert seconds_in_turns(calls, "cpu", 3) == {name: [1, 1, 1] for name in "abc"}


def test_the_bar_counts_the_warm_up_too(calls):
    with tqdm(total=9, disable=False, file=StringIO()) as bar:
        seconds_in_turns(calls, "cpu", 2, bar=bar)
        assert bar.n == 9


def test_the_clock_waits_for_a_gpu(monkeypatch, clock):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert now("cpu") == 0 and waited == []
    assert timed(lambda: "result", "cuda") == ("result", 1)
    assert waited == ["cuda", "cuda"], "before the call and behind it"


def test_median_and_range():
    assert median_and_range([3.0, 1.0, 8.0]) == {"median": 3.0, "min": 1.0, "max": 8.0}

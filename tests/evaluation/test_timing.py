"""Calls are interleaved, the warm-up is not timed, the clock waits for the device, and a query's cost is a slope."""

import pytest
import torch
from draft_models import drafted

from wedlm.evaluation import timing
from wedlm.evaluation.timing import Timed, interleaved, interleaved_seconds, measured_query_cost, query_cost_of, timed


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
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks))


def test_every_call_is_made_in_every_round(calls, made, clock):
    taken = list(interleaved(calls, "cpu", num_rounds=2))
    assert made == [*"abc", *"abc", *"abc"]
    assert taken == [Timed(name, number, 1) for number, name in enumerate("abcabc", start=4)]
    assert interleaved_seconds(calls, "cpu", 3) == {name: [1, 1, 1] for name in "abc"}


def test_another_call_begins_and_results_come_one_at_a_time(calls, made):
    for number, each in enumerate(interleaved(calls, "cpu", 2, num_warm_up=0, first=1), start=1):
        assert each.result == len(made) == number
    assert made == [*"bca", *"bca"]


def test_the_clock_waits_for_a_gpu(monkeypatch, clock):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert timed(lambda: "result", "cpu") == ("result", 1) and waited == []
    assert timed(lambda: "result", "cuda") == ("result", 1)
    assert waited == ["cuda", "cuda"], "before the call and behind it"


def test_the_cost_of_a_query_is_the_slope_by_the_time_of_one(monkeypatch):
    assert query_cost_of({1: 2.0, 8: 2.7, 16: 3.5}) == 0.05
    assert query_cost_of({1: 1.2, 8: 1.1, 16: 1.0}) == 0.0
    widths, model = [], drafted()
    model.register_forward_pre_hook(
        lambda module, args, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    monkeypatch.setattr(timing, "NUM_ROUNDS", 2)
    assert measured_query_cost(model) >= 0
    assert widths == [timing.NUM_CACHED, *[1, 8, 32] * (3 + 2)]

"""What one more query costs."""

import pytest
from draft_models import drafted, tiny_model

from wedlm.evaluation import query_cost
from wedlm.evaluation.query_cost import measured_query_cost, query_cost_of


def test_the_cost_is_the_slope_by_the_time_of_one_query():
    assert query_cost_of({1: 2.0, 8: 2.7, 16: 3.5}) == 0.05
    assert query_cost_of({1: 1.0, 8: 1.0, 16: 1.0}) == query_cost_of({1: 1.2, 8: 1.1, 16: 1.0}) == 0.0


@pytest.mark.parametrize("make", [tiny_model, drafted])
def test_forwards_of_a_model_are_timed_in_turns(monkeypatch, make):
    widths, model = [], make()
    model.register_forward_pre_hook(
        lambda module, args, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    monkeypatch.setattr(query_cost, "NUM_ROUNDS", 2)
    assert measured_query_cost(model) >= 0
    assert widths == [query_cost.NUM_CACHED, *[1, 8, 16] * (3 + 2)]

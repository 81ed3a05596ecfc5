"""The number of queries of a step by their price: costs as they are learned, and what follows from them."""

import math

import pytest
import torch
from decoded import SPECIAL, STATIC, policy_with
from free_queries import FixedExperience
from helpers import CHECKPOINTS, PROMPTS, left_padded, load
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.generation import decoding_run, step_costs
from wedlm.generation.step_costs import (
    CAUTION,
    FADING,
    LESS_CAUTION,
    MOST_CAUTION,
    NEW_GAIN,
    Experience,
    StepCosts,
    StepPrices,
)
from wedlm.generation.verified import VerifiedWindow

MODEL = load(CHECKPOINTS / "q3").double()  # where no rounding decides


def costs_of(steps) -> StepCosts:
    costs = StepCosts()
    for width, seconds in steps:
        costs.note(width, seconds)
    return costs


def test_a_time_is_known_after_two_steps_and_the_first_may_be_slow():
    assert costs_of([(1, 9.0)]).single_seconds is None
    assert costs_of([(1, 9.0), (1, 1.0)]).single_seconds == 1.0
    assert costs_of([(1, 1.0), (1, 1.0), (4, 9.0)]).further_seconds(6) == [0.0] * 4 + [math.inf] * 2
    costs = costs_of([(1, 1.0), (8, 9.0), (8, 1.5), (1, 1.0)])
    assert costs.further_seconds(8)[7] == pytest.approx(0.5 * FADING)


def test_what_lies_between_is_on_the_line_and_what_lies_behind_costs_no_more(monkeypatch):
    monkeypatch.setattr(step_costs, "FADING", 1.0)
    costs = costs_of([(1, 1.0), (1, 1.0), (4, 2.5), (4, 2.5), (8, 5.5), (8, 5.5)])
    assert costs.further_seconds(10) == pytest.approx([0, 0.5, 1, 1.5, 2.25, 3, 3.75, 4.5, 4.5, 4.5])


def test_a_narrower_step_takes_no_longer(monkeypatch):
    monkeypatch.setattr(step_costs, "FADING", 1.0)
    costs = costs_of([(1, 3.0), (1, 3.0), (4, 9.0), (4, 9.0), (8, 2.0), (8, 2.0)])
    assert costs.single_seconds == 2.0 and costs.further_seconds(8) == [0.0] * 8


def test_a_disturbed_step_moves_the_mean_little_and_a_steady_change_moves_it():
    assert costs_of([(1, 1.0), (1, 1.0), (1, 1000.0)]).single_seconds == pytest.approx(1.2)
    assert costs_of([(1, 1.0)] * 2 + [(1, 1.5)] * 40).single_seconds == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize(("stale", "other"), [(1, 8), (8, 1)])
def test_old_times_fade_so_that_the_step_is_tried_again_and_then_counts_for_more(stale, other):
    costs = costs_of([(stale, 3.0), (stale, 3.0), *[(other, 3.5)] * 5000])
    time = costs.times[(stale - 1).bit_length()]
    assert time.belief(costs.num_steps) == pytest.approx(FADING**5000)
    assert costs.single_seconds <= 3.5 and costs.further_seconds(8)[7] <= 3.5
    costs.note(stale, 2.0)
    assert time.seconds == pytest.approx(2.0, rel=0.1)


def test_prices_are_in_tokens_of_the_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(step_costs.time, "perf_counter", lambda: clock[0])
    prices = StepPrices(Experience(), 2, 0, 8, torch.device("cpu"))
    assert prices.tensor[0] == 0 and (prices.tensor[1:] > 1e6).all(), "first a step of one query is timed"
    num_tokens = 0
    for width, seconds, more in ((1, 9.0, 2), (1, 1.0, 2), (1, 1.0, 2), (8, 2.0, 6), (8, 2.0, 6)):
        clock[0] += seconds
        num_tokens += more
        prices.note(width, 2, 2, 0, num_tokens)
    prices.caution = 1.5
    prices.update(2, 0)
    rate = max(1 / FADING**2, prices.num_tokens / prices.seconds)
    assert 1 < rate < 1.5
    assert prices.tensor.tolist() == pytest.approx([1.5 * rate * (2 - FADING**2) * k / 7 for k in range(8)])


def test_prices_fall_with_what_further_queries_have_gained_and_rise_with_what_they_have_lost():
    prices = StepPrices(FixedExperience({8: 1.4}), 2, 0, 8, torch.device("cpu"))  # seven further queries: 1.4 tokens
    assert prices.tensor.tolist() == pytest.approx([CAUTION * 0.2 * k for k in range(8)])
    num_tokens, cautions = 0, []
    # The first step has no time. One of the two rows has ended.
    for width, num_alive, more in ((8, 2, 2), (1, 2, 2), (8, 2, 8), (8, 1, 2), (8, 2, 2), *[(8, 2, 2)] * 9):
        num_tokens += more
        prices.note(width, 2, num_alive, 0, num_tokens)
        cautions.append(prices.caution)
    caution, expected = CAUTION, [CAUTION]
    for gained in (0, 8 / 2 - 1 - 1.4, 2 - 1 - 1.4, -1.4):
        caution += LESS_CAUTION * (1 - caution) - NEW_GAIN * gained
        expected.append(caution)
    assert cautions[:5] == pytest.approx(expected)
    assert cautions[-1] == MOST_CAUTION
    prices.note(1, 2, 2, 0, num_tokens + 200)
    assert prices.caution == 1.0, "never less than the price"


def test_a_step_whose_price_nobody_knows_changes_no_caution():
    prices = StepPrices(FixedExperience(), 1, 0, 32, torch.device("cpu"))
    prices.note(1, 1, 1, 0, 1)
    prices.note(32, 1, 1, 0, 2)
    assert prices.caution == CAUTION


def test_what_is_known_of_drafts_is_a_running_mean_of_calls():
    experience = Experience()
    first = {"group_doubts": torch.tensor([[0.5, 1.0], [0.5, 1.0]])}
    experience.note_drafts(first, {"group_doubts": torch.tensor([[1.0, 2.0], [0.0, 4.0]])})
    assert experience.draft_records["group_doubts"].tolist() == pytest.approx([0.5, 1.0 + 0.3 * (3.0 - 1.0)])
    experience.note_drafts(first, {"group_doubts": torch.tensor([[1.5, 1.0], [0.5, 1.0]])})
    expected = [0.5 + 0.3 * (1.5 - 0.5), 1.6]
    assert experience.draft_records["group_doubts"].tolist() == pytest.approx(expected), "no news of the second"
    experience.note_drafts(first, first)
    assert experience.draft_records["group_doubts"].tolist() == pytest.approx(expected), "no news at all"


def test_costs_are_known_apart_by_rows_length_and_shapes():
    experience = Experience()
    asked = [(1, 0), (2, 0), (3, 0), (1, 1023), (1, 1024), (1, 5000), (1, 0, True)]
    costs = [experience.costs_of(*each) for each in asked]
    assert [costs.index(each) for each in costs] == [0, 1, 2, 0, 4, 5, 6]
    assert experience.costs_of(4, 900) is costs[2] and experience.costs_of(1, 7000) is costs[5]


def test_a_step_of_fixed_shapes_costs_what_its_shape_costs():
    prices = StepPrices(FixedExperience({8: 1.4, 32: 6.0}), 1, 0, 32, torch.device("cpu"), shapes=(1, 8, 32))
    assert prices.tensor.tolist() == pytest.approx([0.0] + [CAUTION * 1.4] * 7 + [CAUTION * 6.0] * 24)


def test_the_next_shape_is_tried_though_it_is_far_wider():
    prices = StepPrices(FixedExperience(), 1, 0, 32, torch.device("cpu"), shapes=(1, 8, 32))
    assert prices.tensor[:8].tolist() == [0.0] * 8 and (prices.tensor[8:] > 1e6).all()


def test_the_pace_of_late_is_that_of_a_row_that_is_alive():
    prices = StepPrices(FixedExperience({2: 1.0}), 4, 0, 2, torch.device("cpu"))
    prices.note(2, 4, 4, 0, 0, now=0.0)
    prices.note(2, 4, 4, 0, 12, now=1.0)  # three tokens of each row, with a step of 1 second
    prices.caution = 1.0
    prices.update(4, 0)
    assert prices.tensor[1] == pytest.approx(3.0)
    prices.note(2, 4, 1, 0, 15, now=2.0)  # three of the one that is left
    prices.caution = 1.0
    prices.update(4, 0)
    assert prices.tensor[1] == pytest.approx(3.0)


# --- Decoding ---


def tell_time(monkeypatch, model, seconds_of):
    """A clock that forwards alone move on; returns their widths."""
    clock, widths = [0.0], []
    monkeypatch.setattr(decoding_run, "experience_with", step_costs.experience_with)
    monkeypatch.setattr(step_costs.time, "perf_counter", lambda: clock[0])
    forward = model.model.forward

    def timed(**given):
        widths.append(given["input_ids"].shape[1])
        clock[0] += seconds_of(*given["input_ids"].shape)
        return forward(**given)

    monkeypatch.setattr(model.model, "forward", timed)
    return widths


@pytest.mark.parametrize("num_rows", [1, 5])
def test_where_queries_are_dear_a_step_has_one(monkeypatch, num_rows):
    model = load(CHECKPOINTS / "q3")
    widths = tell_time(monkeypatch, model, lambda rows, width: width)
    prompts = left_padded(PROMPTS[:num_rows])
    for _ in range(2):
        widths.clear()
        model.generate(**prompts, max_new_tokens=60, decoding="verified", eos_token_id=None, pad_token_id=0)
    assert sum(width > 1 for width in widths[1:]) <= 3


@pytest.mark.parametrize("num_rows", [1, 5])
def test_where_queries_cost_nothing_a_step_has_all_that_are_of_use(monkeypatch, num_rows):
    model = load(CHECKPOINTS / "q3")
    widths = tell_time(monkeypatch, model, lambda rows, width: 1.0)
    prompts = left_padded(PROMPTS[:num_rows])
    model.generate(**prompts, max_new_tokens=60, decoding="verified", eos_token_id=None, pad_token_id=0)
    assert widths[1:4] == [1, 1, 1] and 1 < max(widths[4:7]) <= 4 and max(widths[4:]) == 32
    before = len(widths)
    model.generate(**prompts, max_new_tokens=60, decoding="verified", eos_token_id=None, pad_token_id=0)
    assert max(widths[before + 1 :]) == 32 and widths[before + 1] > 1, "what was learned stays"


def test_static_steps_learn_what_they_cost(monkeypatch):
    model = load(CHECKPOINTS / "q3")
    widths = tell_time(monkeypatch, model, lambda rows, width: 1.0 + width / 1000)
    more = {"max_new_tokens": 60, "decoding": "verified", "eos_token_id": None, "pad_token_id": 0}
    model.generate(**left_padded(PROMPTS), **more, **STATIC)
    assert widths[1:4] == [1, 1, 1] and max(widths[1:]) == 32
    costs = step_costs.experience_with(model).costs_of(len(PROMPTS), 0, is_static=True)
    known = {each.width: each.seconds for each in costs.times.values() if each.is_known}
    assert {1, 32} <= known.keys()
    assert known == pytest.approx({width: 1.0 + width / 1000 for width in known}), "each width its own time"


def test_the_first_plan_knows_how_long_the_prompt_is(monkeypatch):
    """It is priced as the steps of texts of that length, not as those of short ones."""
    asked = []

    class Watched(FixedExperience):
        def costs_of(self, num_rows, longest, is_static=False):
            asked.append(longest)
            return super().costs_of(num_rows, longest, is_static)

    monkeypatch.setattr(decoding_run, "experience_with", lambda model: Watched({32: 0.0}))
    prompts = left_padded([PROMPTS[0], PROMPTS[0] * 3])
    MODEL.generate(**prompts, **SPECIAL, max_new_tokens=6, decoding="verified", prefill_chunk_size=4)
    assert min(asked) == 3 * len(PROMPTS[0])


@pytest.mark.parametrize(("start", "has_drafts"), [([20, 20], True), ([90, 20], False), ([20, 90], True)])
def test_a_row_that_is_ahead_counts_for_less(start, has_drafts):
    """The first row has good drafts, which cost half a token each; the other one has none."""
    policy = policy_with(4, prices=torch.arange(8) * 0.4)
    window = VerifiedWindow.opened(torch.tensor([5, 5]), 200, policy)
    window.chances = torch.tensor([[0.9, 0.9, 0.9], [0.0, 0.0, 0.0]])
    plan = window.plan(torch.tensor(start), 1, policy)
    assert plan.num_drafts.tolist() == ([3, 0] if has_drafts else [0, 0])


def test_a_fixed_window_asks_for_no_price(monkeypatch):
    monkeypatch.setattr(decoding_run, "experience_with", None)
    MODEL.generate(**left_padded(PROMPTS), **SPECIAL, max_new_tokens=8, decoding="verified", window_size=4)
    MODEL.generate(**left_padded(PROMPTS), **SPECIAL, max_new_tokens=8, decoding="verified", window_size=4, **STATIC)
    MODEL.generate(**left_padded(PROMPTS), **SPECIAL, max_new_tokens=8, decoding="streaming")


FURTHER = st.dictionaries(st.sampled_from([2, 3, 8, 20, 32]), st.floats(0, 3), max_size=4)


@given(FURTHER, st.booleans(), st.integers(0, 99), st.data())
@property_settings(40, deadline=None)
def test_the_text_does_not_depend_on_costs_and_records(further, do_sample, seed, data):
    num_rows = data.draw(st.integers(1, 5), "rows")
    prompts = [PROMPTS[i] * data.draw(st.integers(1, 2), f"repeats {i}") for i in range(num_rows)]
    more = {"max_new_tokens": data.draw(st.integers(1, 40), "limit"), "do_sample": do_sample, "top_k": 30}
    more |= data.draw(st.sampled_from([{}, {"prompt_lookup_num_tokens": 0}, {"repetition_penalty": 1.3}]), "more")
    experience, generator = FixedExperience(further), torch.Generator().manual_seed(seed)
    experience.draft_records = {
        "acceptance": torch.rand(3, 7, generator=generator),
        "group_doubts": 5 * torch.rand(2, generator=generator),
    }
    cache = data.draw(st.sampled_from([{}, STATIC]), "cache")

    def run(**arguments):
        torch.manual_seed(seed)
        return MODEL.generate(**left_padded(prompts), **SPECIAL, **more, **arguments, decoding="verified").tolist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding_run, "experience_with", lambda model: experience)
        got = run(**cache)
    assert got == run(window_size=1, **({} if "prompt_lookup_num_tokens" in more else {"prompt_lookup_num_tokens": 0}))

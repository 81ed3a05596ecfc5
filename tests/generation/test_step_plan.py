"""The plan of a verified step, against all plans that there are."""

from functools import lru_cache
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.generation import step_plan
from wedlm.generation.step_plan import MOST_DRAFTS, plan_step, with_first_mask


def value_of(sizes, chances, expected, num_open):
    """The tokens that are expected of judging len(sizes) - 1 drafts, with groups of these sizes."""
    num_drafts = len(sizes) - 1
    reached = [1.0, *chances[:num_drafts], 0.0]
    value = sum(chances[:num_drafts])
    for num_seen, size in enumerate(sizes):
        drafts = [expected[k] for k in range(size - 1) if num_seen + k + 1 < num_open]
        value += (reached[num_seen] - reached[num_seen + 1]) * sum(drafts)
    return value


def best_value(chances, expected, num_open, most):
    num_real = sum(chance > 0 for chance in chances)
    longest = len(expected) + 1

    def best_groups(num_drafts):
        reached = [1.0, *chances[:num_drafts], 0.0]

        @lru_cache(None)
        def best(group, left):
            if group > num_drafts:
                return 0.0
            share, most_here = reached[group] - reached[group + 1], -1.0
            for size in range(min(longest, left) + 1):
                drafts = [expected[k] for k in range(size - 1) if group + k + 1 < num_open]
                most_here = max(most_here, share * sum(drafts) + best(group + 1, left - size))
            return most_here

        return sum(chances[:num_drafts]) + best(0, most - num_drafts)

    return max(best_groups(num_drafts) for num_drafts in range(min(num_real, most) + 1))


@st.composite
def situations(draw):
    size = draw(st.integers(1, 6), "window_size")
    share = st.floats(2**-6, 1.0, width=32)
    num_drafts = draw(st.integers(0, size - 1), "drafts")
    singles = draw(st.lists(share, min_size=num_drafts, max_size=num_drafts), "chances")
    chances = list(accumulate(singles, lambda x, y: x * y)) + [0.0] * (size - 1 - num_drafts)
    singles = draw(st.lists(share, min_size=size - 1, max_size=size - 1), "expected")
    expected = list(accumulate(singles, lambda x, y: x * y))
    return chances, expected, draw(st.integers(max(1, num_drafts), 20), "open"), draw(st.integers(0, 2 * size), "most")


@given(situations())
@property_settings(300, deadline=None, derandomize=True)
def test_no_plan_is_much_better(situation):
    chances, expected, num_open, most = situation
    plan = plan_step(torch.tensor([chances]), torch.tensor([expected]), torch.tensor([num_open]), torch.tensor([most]))
    num_drafts, groups = plan.num_drafts.item(), plan.groups[0]
    sizes = groups.diff().tolist()
    assert num_drafts + sum(sizes) <= most and not any(sizes[num_drafts + 1 :])
    assert all(size == 0 or 2 <= size <= len(expected) + 1 for size in sizes)
    assert all(seen + size <= num_open for seen, size in enumerate(sizes) if size), "no MASK is behind the end"
    assert num_drafts <= sum(chance > 0 for chance in chances)
    got = value_of(sizes[: num_drafts + 1], chances, expected, num_open)
    best = best_value(chances, expected, num_open, most)
    # At the end of the queries a group may be left without the MASK that would have paid for its first one.
    shares = [1.0, *chances, 0.0]
    most_lost = max(shares[j] - shares[j + 1] for j in range(len(shares) - 1)) * max([0.0, *expected])
    assert best - most_lost - 1e-5 <= got <= best + 1e-5


def test_plans_are_good_on_the_whole():
    generator = torch.Generator().manual_seed(0)
    got = best = 0.0
    for _ in range(150):
        chances, expected = (torch.rand(5, generator=generator).cumprod(-1) for _ in range(2))
        plan = plan_step(chances[None], expected[None], torch.tensor([20]), torch.tensor([11]))
        sizes = plan.groups[0].diff().tolist()[: plan.num_drafts.item() + 1]
        got += value_of(sizes, chances.tolist(), expected.tolist(), 20)
        best += best_value(chances.tolist(), expected.tolist(), 20, 11)
    assert 0.97 * best < got <= best + 1e-3


def test_a_wide_window_needs_no_more_memory():
    chances, expected = (torch.full((1, 999), 0.99).cumprod(-1) for _ in range(2))
    plan = plan_step(chances, expected, torch.tensor([5000]), torch.tensor([1999]))
    assert plan.groups.shape == (1, 1001) and 0 < plan.num_drafts <= MOST_DRAFTS
    assert plan.groups.diff().max() <= MOST_DRAFTS + 1


def test_rows_are_planned_alone():
    generator = torch.Generator().manual_seed(0)
    chances, expected = (torch.rand(20, 7, generator=generator).cumprod(-1) for _ in range(2))
    num_open, most = torch.arange(1, 21), torch.arange(20) % 16
    together = plan_step(chances, expected, num_open, most)
    for row in range(20):
        alone = plan_step(*(x[row : row + 1] for x in (chances, expected, num_open, most)))
        assert torch.equal(alone.num_drafts[0], together.num_drafts[row])
        assert torch.equal(alone.groups[0], together.groups[row])


@pytest.mark.parametrize(
    ("expected", "shared"), [([0.6, 0.5, 0.1], [1.1 / 3] * 3 + [0.1]), ([0.9, 0.1], [0.45, 0.45, 0.1]), ([], [0.0])]
)
def test_the_first_masks_of_a_group_share_their_value(expected, shared):
    got = with_first_mask(torch.tensor([expected]))
    assert got[0].tolist() == pytest.approx(shared) and got.sum().item() == pytest.approx(sum(expected))


@given(st.lists(situations(), min_size=1, max_size=3), st.data())
@property_settings(200, deadline=None, derandomize=True)
def test_rows_have_as_many_queries_together_as_gain_most(rows, data):
    size = max(len(chances) for chances, *_ in rows)
    rising = data.draw(st.lists(st.floats(0, 1, width=32), min_size=2 * size + 1, max_size=2 * size + 1), "prices")
    prices = torch.tensor([0.0, *accumulate(rising)])
    chances, expected = (
        torch.tensor([row[i] + [0.0] * (size - len(row[i])) for row in rows]).reshape(len(rows), size) for i in (0, 1)
    )
    num_open, most = (torch.tensor([row[i] for row in rows]) for i in (2, 3))
    weights = torch.tensor(data.draw(st.lists(st.floats(0, 1, width=32), min_size=len(rows), max_size=len(rows))))
    got = plan_step(chances, expected, num_open, most, prices, weights)
    reduced = (expected - min(price / i for i, price in enumerate(prices.tolist()) if i)).clamp(min=0)

    def planned(number):
        return plan_step(chances, reduced, num_open, most.clamp(max=number))

    def gain(plan):
        of_rows = zip(plan.num_drafts.tolist(), plan.groups, chances, reduced, num_open.tolist(), strict=True)
        values = [
            value_of(groups.diff().tolist()[: num + 1], of_row.tolist(), of_new.tolist(), num_slots)
            for num, groups, of_row, of_new, num_slots in of_rows
        ]
        return sum(weight * value for weight, value in zip(weights.tolist(), values, strict=True))

    plans = [planned(number) for number in range(len(prices))]
    same = [
        number
        for number, plan in enumerate(plans)
        if torch.equal(plan.num_drafts, got.num_drafts) and torch.equal(plan.groups, got.groups)
    ]
    assert same, "a plan for some number of queries"
    shares = [[1.0, *row, 0.0] for row in chances.tolist()]
    most_lost = sum(
        max(row[j] - row[j + 1] for j in range(len(row) - 1)) * max([0.0, *new])
        for row, new in zip(shares, reduced.tolist(), strict=True)
    )
    paid = (prices * weights.sum()).tolist()
    best = max(gain(plan) - price for plan, price in zip(plans, paid, strict=True))
    assert gain(got) - paid[same[0]] >= best - 2 * most_lost - 1e-4


def test_queries_that_cost_nothing_are_all_taken_and_dear_ones_are_not():
    generator = torch.Generator().manual_seed(0)
    chances, expected = (torch.rand(4, 7, generator=generator).cumprod(-1) for _ in range(2))
    num_open, most = torch.full((4,), 99), torch.full((4,), 15)
    free = plan_step(chances, expected, num_open, most)
    for prices, wanted in ((torch.zeros(16), free), (torch.arange(16) * 10.0, None)):
        got = plan_step(chances, expected, num_open, most, prices, torch.ones(4))
        if wanted is None:
            assert not got.num_drafts.any() and not got.groups.any()
        else:
            assert torch.equal(got.num_drafts, wanted.num_drafts) and torch.equal(got.groups, wanted.groups)


def test_where_nothing_pays_the_plan_is_the_one_that_a_search_finds(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(300):
        chances, expected = (torch.rand(3, 4, generator=generator).cumprod(-1) for _ in range(2))
        num_open, most = torch.randint(1, 9, (3,), generator=generator), torch.full((3,), 9)
        prices = torch.rand(10, generator=generator).cumsum(0) * 3
        situation = (chances, expected, num_open, most, prices - prices[0], torch.rand(3, generator=generator))
        found.append(step_plan.nothing_pays(chances, expected, *situation[-2:]))
        plan = plan_step(*situation)
        with monkeypatch.context() as patch:
            patch.setattr(step_plan, "nothing_pays", lambda *arguments: False)
            searched = plan_step(*situation)
        assert torch.equal(plan.num_drafts, searched.num_drafts) and torch.equal(plan.groups, searched.groups)
    assert 50 < sum(found) < 250

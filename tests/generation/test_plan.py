"""The plan of a verified step: what it may be, and that it is nearly the best."""

from functools import lru_cache
from itertools import accumulate

import pytest
import torch
from decoded import begun, settings_with
from hypothesis import given
from hypothesis import strategies as st
from reference_decoder import looked_up
from tiers import property_settings

from wedlm.generation.plan import WIDEST, cost_of_query, decides_alone, num_worthwhile, plan_step, relative_cost
from wedlm.generation.verified import VERIFIED, look_up


def planned_together(situations, cost=0.0):
    """The number of drafts, and the sizes of the groups, of each row."""
    columns = [list(column) for column in zip(*situations, strict=True)]
    chances, next_chance, num_open, most = map(torch.tensor, columns)
    groups = plan_step(chances.reshape(len(situations), -1), next_chance[:, None], num_open, most, cost)
    assert groups.shape == (len(situations), len(situations[0][0]) + 2)
    return list(zip(groups[:, 0].tolist(), groups.diff().tolist(), strict=True))


def planned(*situation, cost=0.0):
    return planned_together([situation], cost)[0]


def value_of(sizes, chances, next_chance, num_open):
    """The tokens that are expected of verifying len(sizes) - 1 drafts, with groups of these sizes."""
    reached = [1.0, *chances[: len(sizes) - 1], 0.0]
    value = sum(reached[1:])
    for num_seen, size in enumerate(sizes):
        drafts = [next_chance**k for k in range(1, size) if num_seen + k < num_open]
        value += (reached[num_seen] - reached[num_seen + 1]) * sum(drafts)
    return value


def best_value(chances, next_chance, num_open, most):
    def best_groups(num_drafts):
        reached = [1.0, *chances[:num_drafts], 0.0]

        @lru_cache(None)
        def best(group, left):
            if group > num_drafts:
                return 0.0
            share, most_here = reached[group] - reached[group + 1], -1.0
            for size in range(min(len(chances) + 1, left) + 1):
                drafts = [next_chance**k for k in range(1, size) if group + k < num_open]
                most_here = max(most_here, share * sum(drafts) + best(group + 1, left - size))
            return most_here

        return sum(chances[:num_drafts]) + best(0, most - num_drafts)

    num_real = sum(chance > 0 for chance in chances)
    return max(best_groups(num_drafts) for num_drafts in range(min(num_real, most) + 1))


@st.composite
def situations(draw):
    size = draw(st.integers(1, 6), "window_size")
    share = st.floats(2**-6, 1.0, width=32)
    num_drafts = draw(st.integers(0, size - 1), "drafts")
    singles = draw(st.lists(share, min_size=num_drafts, max_size=num_drafts), "chances")
    chances = list(accumulate(singles, lambda x, y: x * y)) + [0.0] * (size - 1 - num_drafts)
    return chances, draw(share, "next"), draw(st.integers(0, 20), "open"), draw(st.integers(0, 2 * size), "most")


def test_the_mean_gain_of_all_rows_pays():
    """0.8 in one of four rows is a mean of 0.2."""
    rows = [([0.8, 0.0], 0.1, 9, 6)] + [([0.0, 0.0], 0.1, 9, 6)] * 3
    assert [planned_together(rows, cost)[0][0] for cost in (0.15, 0.25)] == [1, 0]
    assert planned(*rows[0], cost=0.25)[0] == 1, "alone it would pay"


COSTS = st.lists(st.sampled_from([0.0, 1e-3, 0.04, 0.1, 0.3, 1.0, 1e30]), min_size=2, max_size=2).map(sorted)


@given(situations(), COSTS)
@property_settings(300, deadline=None, derandomize=True)
def test_what_a_plan_may_be(situation, costs):
    chances, _, num_open, most = situation
    size, numbers = len(chances) + 1, []
    for cost in costs:
        num_drafts, sizes = planned(*situation, cost=cost)
        assert 0 <= num_drafts <= min(size - 1, num_open) and num_drafts + sum(sizes) <= most <= 2 * size
        assert all(number == 0 or 2 <= number <= size for number in sizes), "no group of one"
        assert not any(sizes[num_drafts + 1 :]), "no group sees a draft that is not there"
        assert all(seen + number <= num_open for seen, number in enumerate(sizes) if number)
        assert all(chance > cost for chance in chances[:num_drafts])
        numbers.append((num_drafts, sum(sizes)))
    assert numbers[0][0] >= numbers[1][0] and numbers[0][1] >= numbers[1][1], "a higher cost asks for no more"


def test_plans_are_good_on_the_whole():
    generator = torch.Generator().manual_seed(0)
    got = best = 0.0
    for _ in range(150):
        chances = torch.rand(5, generator=generator).sqrt().cumprod(-1).tolist()
        next_chance = torch.rand((), generator=generator).item()
        num_drafts, sizes = planned(chances, next_chance, 20, 11)
        got += value_of(sizes[: num_drafts + 1], chances, next_chance, 20)
        best += best_value(chances, next_chance, 20, 11)
    assert 0.93 * best < got <= best + 1e-3, "a lone query may be left, and half of the gain is a guess"


def test_a_plan_that_can_be_read():
    """The group for 0, 1 and 2 accepted drafts is used in 0.1, 0.4 and 0.5 of all cases."""
    assert planned([0.9, 0.5, 0.0], 0.5, 99, 7) == (2, [0, 2, 3, 0])
    assert planned([0.9, 0.5, 0.0], 0.5, 99, 7, cost=0.11) == (2, [0, 0, 3, 0])
    assert planned([0.9, 0.5, 0.0], 0.5, 99, 7, cost=0.7) == (1, [0, 0, 0, 0])
    assert planned([0.9, 0.5, 0.0], 0.5, 2, 7) == (2, [2, 0, 0, 0]), "no draft is behind two slots"


def test_a_wide_window_needs_no_more_memory():
    chances = torch.full((1, 999), 0.99).cumprod(-1)
    groups = plan_step(chances, torch.tensor([[0.99]]), torch.tensor([5000]), torch.tensor([1999]))
    assert groups.shape == (1, 1001) and 0 < groups[0, 0] < WIDEST
    assert groups.diff().max() <= WIDEST


@pytest.mark.parametrize(("num_rows", "num_queries"), [(1, 1), (1, 9), (8, 1), (8, 5)])
def test_the_cost_of_a_query_is_a_share_of_the_forward_that_it_makes_larger(num_rows, num_queries):
    def cost(num):
        return 1 + 0.04 * (num - 1)

    further = cost(num_rows * num_queries) - cost(num_rows)
    assert relative_cost(0.04, num_rows) * (num_queries - 1) == pytest.approx(further / cost(num_rows))
    assert relative_cost(0, num_rows) == 0


TEXTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=4)


@given(TEXTS, st.integers(1, 12), st.integers(1, 6), st.integers(1, 3))
@property_settings(300, deadline=None, derandomize=True)
def test_drafts_are_those_of_a_search_token_by_token(rows, num_drafts, most_matched, num_behind):
    width = max(map(len, rows))
    padded = [[-1] * (width - len(row)) + row + [9] * num_behind for row in rows]
    last = torch.full((len(rows), 1), width - 1)
    drafts, num_matched = look_up(torch.tensor(padded), last, num_drafts, most_matched)
    for i, row in enumerate(rows):
        expected, length = looked_up(row, num_drafts, most_matched)
        assert num_matched[i] == length
        if length:
            assert drafts[i].tolist() == expected


@given(st.data())
@property_settings(60, deadline=None)
def test_without_masks_the_drafts_are_those_that_are_taken_where_masks_promise_nothing(data):
    batch, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 40))
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    chances = torch.rand(batch, size - 1).cumprod(-1) * (torch.rand(batch, size - 1) > 0.1).cumprod(-1)
    settings = settings_with(VERIFIED, size, data.draw(st.sampled_from([0.0, 0.04, 0.3])))
    if data.draw(st.booleans(), "alone"):
        settings = settings._replace(rule=settings.rule._replace(margin=torch.ones(())))
    sequences, num_final = begun(VERIFIED, settings, [1] * batch, 9).sequences, torch.randint(1, 30, (batch,))
    sequences = sequences._replace(
        num_final=num_final,
        limit=num_final + torch.randint(0, size + 2, (batch,)),
        forwards=torch.randint(1, 30, (batch,)),
    )
    most, cost = torch.full((batch,), 2 * size), cost_of_query(sequences, settings, batch)
    expected = plan_step(chances, torch.zeros(batch, 1), sequences.num_open, most, cost, decides_alone(settings))
    got = num_worthwhile(chances, sequences, settings, batch)
    assert torch.equal(got.clamp(max=WIDEST - 1), expected[:, 0])

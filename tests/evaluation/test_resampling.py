"""Intervals hold the truth as often as they say, and those of pairs are never narrower than the counts allow."""

import numpy as np
import pytest

from wedlm.evaluation import resampling
from wedlm.evaluation.resampling import interval, newcombe, paired_bounds, resampled_means, wilson_distances


@pytest.mark.full
def test_an_interval_of_a_share_holds_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(resampling, "NUM_RESAMPLES", 500)
    random = np.random.default_rng(1)
    held = 0
    for trial in range(200):
        low, high = interval(resampled_means((random.random(300) < 0.3).astype(float), seed=trial))
        held += low <= 0.3 <= high
    assert 0.9 <= held / 200 <= 0.99


def pairs(lost, gained, number, right=0.9, seed=0):
    """Answers of a baseline with so much right, and of one that really loses and gains so much."""
    random = np.random.default_rng(seed)
    base, draw = random.random(number) < right, random.random(number)
    return np.where(base, draw >= lost / right, draw < gained / max(1 - right, 1e-9)).astype(float), base.astype(float)


def test_bounds_are_those_of_pairs():
    """Bounds of many pairs are as wide as their differences spread, not as both sides do."""
    quality, base = pairs(0.1, 0.05, 4000)
    differences = quality - base
    spread = 1.96 * differences.std() / len(differences) ** 0.5
    low, high = paired_bounds(quality, base)
    assert low == pytest.approx(differences.mean() - spread, abs=0.001)
    assert high == pytest.approx(differences.mean() + spread, abs=0.001)


def answers(both, gained, lost, neither):
    """The qualities of answers on both sides, from the counts of pairs."""
    rows = [(1, 1)] * both + [(1, 0)] * gained + [(0, 1)] * lost + [(0, 0)] * neither
    return np.array(rows, dtype=float).T


def test_newcombes_own_example():
    """His paper of 1998 prints these bounds for 36 pairs right on both sides, 12 gained and 2 lost."""
    quality, base = answers(36, 12, 2, 0)
    assert newcombe(quality, base, 1.959964) == (pytest.approx(0.0569, abs=5e-4), pytest.approx(0.3404, abs=5e-4))


def test_a_correlation_counts_as_far_as_it_exceeds_the_continuity_correction():
    """The excess of 50 pairs, 20 * 16 - 12 * 2 = 296, is reduced by 25. That of 9, 3 * 2 - 2 * 2 = 2, becomes 0."""
    for counts, correlation in (
        ((20, 12, 2, 16), (296 - 25) / (32 * 18 * 22 * 28) ** 0.5),
        ((3, 2, 2, 2), 0.0),
        ((2, 2, 2, 0), -4 / 8),  # one that is negative is not reduced
    ):
        quality, base = answers(*counts)
        (down, up), (base_down, base_up) = (wilson_distances(x.mean(), len(x), 1.96) for x in (quality, base))
        difference = quality.mean() - base.mean()
        below = (down**2 - 2 * correlation * down * base_up + base_up**2) ** 0.5
        above = (up**2 - 2 * correlation * up * base_down + base_down**2) ** 0.5
        assert newcombe(quality, base, 1.96) == pytest.approx((difference - below, difference + above)), counts


@pytest.mark.full
@pytest.mark.parametrize(
    ("lost", "gained", "number", "right"), [(0.05, 0.0, 60, 0.95), (0.01, 0.0, 300, 1.0), (0.03, 0.03, 20, 0.9)]
)
def test_bounds_hold_the_truth_as_often_as_they_say(monkeypatch, lost, gained, number, right):
    monkeypatch.setattr(resampling, "NUM_RESAMPLES", 100)
    held = 0
    for seed in range(300):
        low, high = paired_bounds(*pairs(lost, gained, number, right, seed))
        held += low <= gained - lost <= high
    assert held / 300 >= 0.95


def test_a_gain_hides_no_loss_and_few_losses_are_no_proof():
    def bounds(lost, gained, number):
        base = [1] * (number - gained - 2) + [0] * (gained + 2)
        quality = [0] * lost + [1] * (number - lost - 2) + [0] * 2
        return paired_bounds(np.array(quality, dtype=float), np.array(base, dtype=float))

    assert bounds(0, 1, 10)[0] < -0.1, "one gained and none lost of ten is not shown to lose nothing"
    assert bounds(4, 0, 100)[1] > 0, "four of a hundred are no proof"
    assert bounds(10, 1, 200)[1] < 0, "ten of two hundred against one are"

"""What is said of measured numbers: how far they might be off, and how much they spread."""

from math import sqrt
from statistics import NormalDist

import numpy as np

NUM_RESAMPLES = 10_000


def resampled_means(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Means over examples drawn with replacement: `[NUM_RESAMPLES, ...]` of `[examples, ...]`.

    What belongs to one example stays together, so that differences between columns are those of pairs.
    """
    random = np.random.default_rng(seed)
    return np.stack([values[random.integers(len(values), size=len(values))].mean(0) for _ in range(NUM_RESAMPLES)])


def paired_bounds(quality: np.ndarray, base: np.ndarray, share: float = 0.95) -> list[float]:
    """Where the difference of two means of pairs of 0 and 1 may lie: what holds so much of the resamples.

    Resampling cannot draw what has not been seen, so the bounds are never narrower than those by the counts of pairs
    (Newcombe's tenth method): of n pairs without any difference, all right, about 3.8 / n may be lost.
    """
    tail = (1 - share) / 2
    resampled = np.quantile(resampled_means(quality - base), [tail, 1 - tail])
    counted = newcombe(quality, base, NormalDist().inv_cdf(1 - tail))
    return [float(min(resampled[0], counted[0])), float(max(resampled[1], counted[1]))]


def newcombe(quality: np.ndarray, base: np.ndarray, z: float) -> tuple[float, float]:
    """The hybrid score interval of a difference of paired shares, from Wilson's interval of each."""
    number = len(quality)
    both, neither = (quality * base).sum(), ((1 - quality) * (1 - base)).sum()
    gained, lost = (quality * (1 - base)).sum(), ((1 - quality) * base).sum()
    excess = both * neither - gained * lost
    scale = sqrt((both + gained) * (lost + neither) * (both + lost) * (gained + neither))
    correlation = 0.0 if scale == 0 else (max(excess - number / 2, 0) if excess > 0 else excess) / scale
    below, above = zip(*(wilson_distances(values.mean(), number, z) for values in (quality, base)), strict=True)

    def half(own: float, other: float) -> float:
        return sqrt(max(own**2 - 2 * correlation * own * other + other**2, 0))

    difference = quality.mean() - base.mean()
    return difference - half(below[0], above[1]), difference + half(above[0], below[1])


def wilson_distances(share: float, number: int, z: float) -> tuple[float, float]:
    """From a share of so many to the ends of Wilson's interval, below and above."""
    middle = (share + z**2 / (2 * number)) / (1 + z**2 / number)
    half = z * sqrt(share * (1 - share) / number + z**2 / (4 * number**2)) / (1 + z**2 / number)
    return share - (middle - half), middle + half - share


def interval(resampled: np.ndarray) -> list[float]:
    """What holds 95 % of the resamples."""
    return [float(value) for value in np.quantile(resampled, [0.025, 0.975])]


def median_and_quartiles(values: np.ndarray) -> dict:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "quartiles": [float(low), float(high)]}

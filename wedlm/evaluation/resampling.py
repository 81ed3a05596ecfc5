"""Confidence intervals and quartiles of measured numbers."""

from math import sqrt
from statistics import NormalDist

import numpy as np

NUM_RESAMPLES = 10_000


def resampled_means(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Returns the means of resamples of the examples, drawn with replacement.

    The numbers of one example stay together, so that differences between columns are differences of pairs.

    Args:
        values (`np.ndarray` of shape `(examples, ...)`):
            The numbers of each example.
        seed (`int`, defaults to 0):
            Seed of the draws.

    Returns:
        `np.ndarray` of shape `(NUM_RESAMPLES, ...)`.
    """
    random = np.random.default_rng(seed)
    return np.stack([values[random.integers(len(values), size=len(values))].mean(0) for _ in range(NUM_RESAMPLES)])


def paired_bounds(quality: np.ndarray, base: np.ndarray, share: float = 0.95) -> list[float]:
    """Returns a confidence interval of the difference of two means over pairs, as [low, high].

    The interval contains the share `share` of the resamples. Resamples contain no difference that was not observed,
    so the interval is widened to Newcombe's (his tenth method, by the counts of pairs): if n pairs are all right on
    both sides, it still reaches down to about -3.8 / n.

    Args:
        quality (`np.ndarray`):
            Quality of each answer, 0 or 1.
        base (`np.ndarray`):
            Quality of the answer to the same question that it is compared with.
        share (`float`, defaults to 0.95):
            Confidence of the interval.
    """
    tail = (1 - share) / 2
    resampled = np.quantile(resampled_means(quality - base), [tail, 1 - tail])
    counted = newcombe(quality, base, NormalDist().inv_cdf(1 - tail))
    return [float(min(resampled[0], counted[0])), float(max(resampled[1], counted[1]))]


def newcombe(quality: np.ndarray, base: np.ndarray, z: float) -> tuple[float, float]:
    """Returns the hybrid score interval of a difference of paired shares, from Wilson's interval of each share."""
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
    """Returns the distances from the share to the lower and upper end of Wilson's interval."""
    middle = (share + z**2 / (2 * number)) / (1 + z**2 / number)
    half = z * sqrt(share * (1 - share) / number + z**2 / (4 * number**2)) / (1 + z**2 / number)
    return share - (middle - half), middle + half - share


def interval(resampled: np.ndarray) -> list[float]:
    """Returns the interval that contains 95 % of the resamples, as [low, high]."""
    return [float(value) for value in np.quantile(resampled, [0.025, 0.975])]


def median_and_quartiles(values: np.ndarray) -> dict:
    """Returns {"median": ..., "quartiles": [low, high]}."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "quartiles": [float(low), float(high)]}

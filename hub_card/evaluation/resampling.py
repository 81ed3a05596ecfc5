"""What is said of measured numbers: how far they might be off, and how much they spread."""

import numpy as np
from scipy.stats import beta

NUM_RESAMPLES = 10_000


def resampled_means(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Means over examples drawn with replacement: `[NUM_RESAMPLES, ...]` of `[examples, ...]`.

    What belongs to one example stays together, so that differences between columns are those of pairs.
    """
    random = np.random.default_rng(seed)
    return np.stack([values[random.integers(len(values), size=len(values))].mean(0) for _ in range(NUM_RESAMPLES)])


def paired_bounds(differences: np.ndarray, share: float = 0.95) -> list[float]:
    """Where the mean of paired differences, each from -1 to 1, may lie: what holds so much of the resamples.

    Resampling cannot draw what has not been seen, so the bounds are never narrower than the number of pairs that lost
    and that gained allows by itself (Clopper and Pearson, half of what is left for each): of n pairs without any loss
    about 4.4 / n may be lost.
    """
    tail, number = (1 - share) / 2, len(differences)
    lost, gained = int((differences < 0).sum()), int((differences > 0).sum())

    def most(count: int) -> float:
        return float(beta.ppf(1 - tail / 2, count + 1, number - count)) if count < number else 1.0

    def least(count: int) -> float:
        return float(beta.ppf(tail / 2, count, number - count + 1)) if count > 0 else 0.0

    low, high = np.quantile(resampled_means(differences), [tail, 1 - tail])
    return [min(float(low), least(gained) - most(lost)), max(float(high), most(gained) - least(lost))]


def interval(resampled: np.ndarray) -> list[float]:
    """What holds 95 % of the resamples."""
    return [float(value) for value in np.quantile(resampled, [0.025, 0.975])]


def median_and_quartiles(values: np.ndarray) -> dict:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "quartiles": [float(low), float(high)]}

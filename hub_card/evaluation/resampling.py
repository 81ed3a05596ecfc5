"""What is said of measured numbers: how far they might be off, and how much they spread."""

import numpy as np

NUM_RESAMPLES = 10_000


def resampled_means(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Means over examples drawn with replacement: `[NUM_RESAMPLES, ...]` of `[examples, ...]`.

    What belongs to one example stays together, so that differences between columns are those of pairs.
    """
    random = np.random.default_rng(seed)
    return np.stack([values[random.integers(len(values), size=len(values))].mean(0) for _ in range(NUM_RESAMPLES)])


def interval(resampled: np.ndarray) -> list[float]:
    """What holds 95 % of the resamples."""
    return [float(value) for value in np.quantile(resampled, [0.025, 0.975])]


def median_and_quartiles(values: np.ndarray) -> dict:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "quartiles": [float(low), float(high)]}

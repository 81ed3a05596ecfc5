"""Which tokens of a sample are masked, and in which order its prediction stream lists them."""

from typing import NamedTuple

import numpy as np


class Draws(NamedTuple):
    """What is random about a sample of L tokens in K blocks: `gammas` `[K]` in (0, 1], and `masked` `[L]`, bool."""

    gammas: np.ndarray
    masked: np.ndarray


def draw_masks(
    maskable: np.ndarray, block_size: int, rng: np.random.Generator, suffix_mask_probability: float = 0.0
) -> Draws:
    """Masks round(n * gamma) of the n maskable tokens of each block, with a gamma drawn uniformly from (0, 1].

    Which of them is a uniform choice; with `suffix_mask_probability` it is the block's last ones instead.

    Example:

        draw_masks(np.array([False, True, True, True, True, True]), 4, np.random.default_rng(0))
        Draws(gammas=[0.36, 0.73], masked=[False, False, True, False, True, False])
    """
    positions = np.arange(len(maskable))
    blocks = positions // block_size
    num_blocks = blocks[-1] + 1
    # Everything is drawn, needed or not: so no draw depends on the probability, on another or on the labels.
    gammas = 1 - rng.random(num_blocks)
    masks_suffix = rng.random(num_blocks) < suffix_mask_probability
    rank = np.where(masks_suffix[blocks], -positions, rng.random(len(maskable)))  # the lowest ranks are masked
    masked = np.zeros(len(maskable), dtype=bool)
    for block, gamma in enumerate(gammas):
        tokens = np.flatnonzero(maskable & (blocks == block))
        masked[tokens[np.argsort(rank[tokens])[: round(len(tokens) * gamma)]]] = True
    return Draws(gammas, masked)


def prediction_order(masked: np.ndarray, block_size: int) -> np.ndarray:
    """Positions in the order of the prediction stream: per block the observed, then the masked, each ascending.

    Example:

        prediction_order(np.array([True, False, True, False, True, False]), 4)
        [1, 3, 0, 2, 5, 4]
    """
    return np.lexsort((masked, np.arange(len(masked)) // block_size))

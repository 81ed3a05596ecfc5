"""Draws which tokens of a sample are masked, and orders the tokens of its prediction stream."""

from typing import NamedTuple

import numpy as np


class Draws(NamedTuple):
    """The random choices for a sample of L tokens in K blocks."""

    gammas: np.ndarray  # [K], in (0, 1]
    masked: np.ndarray  # [L], bool


def draw_masks(
    maskable: np.ndarray, block_size: int, rng: np.random.Generator, suffix_mask_probability: float = 0.0
) -> Draws:
    """Draws a gamma from (0, 1] for each block, and masks round(n * gamma) of the block's n maskable tokens.

    Args:
        maskable (`np.ndarray`): Whether each token of the sample may be masked, `[L]`.
        block_size (`int`): The number of tokens of a block.
        rng (`np.random.Generator`): The source of all draws.
        suffix_mask_probability (`float`, *optional*, defaults to 0.0):
            The probability that a block masks its last maskable tokens. Other blocks choose any of them, uniformly.

    Returns:
        `Draws`: The gammas and the masked tokens.

    Example:

        draw_masks(np.array([False, True, True, True, True, True]), 4, np.random.default_rng(0))
        Draws(gammas=[0.36, 0.73], masked=[False, False, True, False, True, False])
    """
    positions = np.arange(len(maskable))
    blocks = positions // block_size
    num_blocks = blocks[-1] + 1
    # Numbers are drawn even where none is needed, so that no draw depends on the labels, on suffix_mask_probability or
    # on another draw.
    gammas = 1 - rng.random(num_blocks)
    masks_suffix = rng.random(num_blocks) < suffix_mask_probability
    rank = np.where(masks_suffix[blocks], -positions, rng.random(len(maskable)))  # the lowest ranks are masked
    masked = np.zeros(len(maskable), dtype=bool)
    for block, gamma in enumerate(gammas):
        tokens = np.flatnonzero(maskable & (blocks == block))
        masked[tokens[np.argsort(rank[tokens])[: round(len(tokens) * gamma)]]] = True
    return Draws(gammas, masked)


def prediction_order(masked: np.ndarray, block_size: int) -> np.ndarray:
    """Orders the positions of a sample as the prediction stream lists them.

    Blocks follow each other; a block lists its observed tokens and then its masked ones, each in ascending order.

    Args:
        masked (`np.ndarray`): Whether each token of the sample is masked, `[L]`.
        block_size (`int`): The number of tokens of a block.

    Returns:
        `np.ndarray`: The positions, `[L]`.

    Example:

        prediction_order(np.array([True, False, True, False, True, False]), 4)
        [1, 3, 0, 2, 5, 4]
    """
    return np.lexsort((masked, np.arange(len(masked)) // block_size))

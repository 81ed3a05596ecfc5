"""The draws of masks, their proportions, and the order of the prediction stream."""

import numpy as np
import pytest
from helpers import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

from wedlm.training.masking import draw_masks, prediction_order

maskables = st.lists(st.booleans(), min_size=1, max_size=40).map(np.array)


def draw(maskable, block_size=4, seed=0, suffix_mask_probability=0.0):
    return draw_masks(np.asarray(maskable), block_size, np.random.default_rng(seed), suffix_mask_probability)


def test_the_examples_of_the_docstrings():
    gammas, masked = draw([False, True, True, True, True, True])
    assert gammas.round(2).tolist() == [0.36, 0.73]
    assert masked.tolist() == [False, False, True, False, True, False]
    assert prediction_order(np.array([True, False, True, False, True, False]), 4).tolist() == [1, 3, 0, 2, 5, 4]


@given(maskables, st.integers(1, 12), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 1.0]))
def test_every_block_masks_its_share_of_what_is_maskable(maskable, block_size, seed, suffix_mask_probability):
    gammas, masked = draw(maskable, block_size, seed, suffix_mask_probability)
    assert not (masked & ~maskable).any()
    assert len(gammas) == -(-len(maskable) // block_size)
    for block, gamma in enumerate(gammas):
        tokens = slice(block * block_size, (block + 1) * block_size)
        assert 0 < gamma <= 1
        assert masked[tokens].sum() == round(maskable[tokens].sum() * gamma)


@given(maskables, st.integers(1, 12))
def test_the_order_is_per_block_observed_then_masked_each_in_position_order(masked, block_size):
    order = prediction_order(masked, block_size)
    expected = []
    for start in range(0, len(masked), block_size):
        block = range(start, min(start + block_size, len(masked)))
        expected += [i for i in block if not masked[i]] + [i for i in block if masked[i]]
    assert order.tolist() == expected


def test_rounding_is_that_of_the_recorded_draws():
    recorded = np.load(GOLDEN / "train.npz")
    gammas, masked = recorded["b8.block_mask_ratios"], recorded["b8.mask_indices"]
    maskable = recorded["b8.labels"] != -100
    blocks = [(start, min(start + 8, end)) for begin, end in ((0, 37), (37, 57)) for start in range(begin, end, 8)]
    for gamma, (start, end) in zip(gammas, blocks, strict=True):
        assert masked[start:end].sum() == round(maskable[start:end].sum() * gamma)


# --- Proportions ---


def test_gamma_is_uniform_and_every_token_is_as_likely():
    gammas, masked = draw(np.ones(32 * 4000, dtype=bool), block_size=32)
    counts, _ = np.histogram(gammas, bins=10, range=(0, 1))
    assert (abs(counts - 400) < 5 * 400**0.5).all()
    per_position = masked.reshape(4000, 32).mean(axis=0)  # each 1/2 on average
    assert (abs(per_position - 0.5) < 5 * (0.25 / 4000) ** 0.5).all()


def test_every_choice_of_two_of_four_is_as_likely():
    gammas, masked = draw(np.ones(4 * 8000, dtype=bool))
    choices = masked.reshape(8000, 4)
    choices = choices[choices.sum(axis=1) == 2]
    assert abs(len(choices) / 8000 - 0.25) < 0.025
    _, counts = np.unique(choices, axis=0, return_counts=True)
    expected = len(choices) / 6
    assert len(counts) == 6 and (abs(counts - expected) < 5 * expected**0.5).all()


# --- Masked from the end on ---


def is_suffix(maskable, masked):
    (tokens,) = np.nonzero(maskable)
    return masked[tokens].tolist() == sorted(masked[tokens].tolist())


@given(maskables, st.integers(1, 12), st.integers(0, 1000))
def test_with_probability_1_every_block_masks_its_last_tokens(maskable, block_size, seed):
    _, masked = draw(maskable, block_size, seed, suffix_mask_probability=1.0)
    for start in range(0, len(maskable), block_size):
        assert is_suffix(maskable[start : start + block_size], masked[start : start + block_size])


def test_blocks_that_stay_uniform_keep_their_draws():
    maskable = np.ones(32 * 1000, dtype=bool)
    plain, some, all_of_them = (draw(maskable, 32, suffix_mask_probability=share) for share in (0.0, 0.3, 1.0))
    assert np.array_equal(plain.gammas, some.gammas) and np.array_equal(plain.gammas, all_of_them.gammas)
    blocks = [draws.masked.reshape(1000, 32) for draws in (plain, some, all_of_them)]
    is_plain, is_tail = ((blocks[1] == other).all(axis=1) for other in (blocks[0], blocks[2]))
    assert (is_plain | is_tail).all()
    assert is_tail.mean() == pytest.approx(0.3 + 0.7 * (is_plain & is_tail).mean(), abs=0.1)
    assert 0.25 < 1 - is_plain.mean() < 0.35

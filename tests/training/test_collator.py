"""The collator against a slow loop, and the draws of its masks."""

import textwrap
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from wedlm import DualStreamCollator
from wedlm.training.collator import draw_masks

MASK = 9


def sequence(samples, indices=None):
    """A sequence of samples, each a list of (token, whether it has a loss)."""
    pairs = [pair for sample in samples for pair in sample]
    return {
        "input_ids": [token for token, _ in pairs],
        "labels": [token if has_loss else -100 for token, has_loss in pairs],
        "sample_lengths": [len(sample) for sample in samples],
        "sample_indices": list(range(len(samples))) if indices is None else indices,
    }


def text(length, prompt_length=1, first=10):
    return [(first + i, i >= prompt_length) for i in range(length)]


def collator(**kwargs):
    return DualStreamCollator(**{"mask_token_id": MASK, "block_size": 4, **kwargs})


def by_sample(batch, sequences):
    """The columns of each sample in the batch, by its index, without its place in the sequence."""
    found = {}
    for i, columns in enumerate(sequences):
        for number, index in enumerate(columns["sample_indices"]):
            is_sample = batch["sample_ids"][i] == number
            found[index] = {
                name: values[i, is_sample].tolist() for name, values in batch.items() if name != "sample_ids"
            }
    return found


# --- Batches ---


def test_the_example_of_the_docstring():
    """Run as it stands there, up to rounding."""
    *_, example = DualStreamCollator.__doc__.partition("Example:")
    setup, literal = example.split("collator([sequence]) == ")
    names = {"DualStreamCollator": DualStreamCollator}
    exec(textwrap.dedent(setup), names)
    batch = names["collator"]([names["sequence"]])
    rounded = {name: [[round(x, 2) for x in row] for row in tensor.tolist()] for name, tensor in batch.items()}
    assert rounded == eval(literal.strip())


samples = st.lists(st.tuples(st.integers(10, 99), st.booleans()), min_size=1, max_size=11)


@given(
    st.lists(st.lists(samples, min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(0, 99),
    st.sampled_from(["weighted", "uniform"]),
    st.integers(1, 3),
)
def test_a_batch_is_what_a_loop_makes(packed, block_size, seed, loss_weighting, mask_draws):
    indices = [[100 * i + j for j in range(len(samples))] for i, samples in enumerate(packed)]
    sequences = [sequence(samples, index) for samples, index in zip(packed, indices, strict=True)]
    settings = {"block_size": block_size, "seed": seed, "loss_weighting": loss_weighting, "mask_draws": mask_draws}
    batch = collator(**settings, pad_token_id=3)(sequences)
    expected = []
    for samples, numbers in zip(packed, indices, strict=True):
        made = []
        for i, (sample, index) in enumerate(zip(samples, numbers, strict=True)):
            maskable = np.array([has_loss for _, has_loss in sample])
            generator = np.random.default_rng([seed, 0, index])
            draws = [draw_masks(maskable, block_size, generator) for _ in range(mask_draws)]
            for position, (token, _) in enumerate(sample):
                following = sample[position + 1 : position + 2]
                target = following[0][0] if following and following[0][1] else -100
                number = (position // block_size + 1) * mask_draws - 1
                made.append((token, position, i, 0, number, target, float(target != -100), 0.0))
            for start, (draw, (gammas, masked)) in product(range(0, len(sample), block_size), enumerate(draws)):
                block = range(start, min(start + block_size, len(sample)))
                number, gamma = start // block_size * mask_draws + draw, gammas[start // block_size]
                weight = 1 / gamma if loss_weighting == "weighted" else 1.0
                for position in (p for p in block if not masked[p]):
                    made.append((sample[position][0], position, i, 1, number, -100, 0.0, 0.0))
                for position in (p for p in block if masked[p]):
                    made.append((MASK, position, i, 1, number, sample[position][0], weight, gamma))
        expected.append(made)
    longest = max(len(made) for made in expected)
    expected = [made + [(3, 0, -1, 0, 0, -100, 0.0, 0.0)] * (longest - len(made)) for made in expected]
    names = "input_ids position_ids sample_ids stream_ids block_ids targets target_weights gammas".split()
    for name, columns in zip(names, zip(*(zip(*made, strict=True) for made in expected), strict=True), strict=True):
        torch.testing.assert_close(batch[name], torch.tensor(columns, dtype=batch[name].dtype), msg=name)


@given(st.lists(samples, min_size=1, max_size=3), st.integers(1, 5), st.integers(0, 99), st.integers(1, 2))
def test_idle_blocks_are_left_out_and_nothing_else(packed, block_size, seed, mask_draws):
    sequences, settings = [sequence(packed)], {"block_size": block_size, "seed": seed, "mask_draws": mask_draws}
    whole, lean = (collator(**settings, drop_idle_blocks=drop)(sequences) for drop in (False, True))
    whole, lean = (by_sample(batch, sequences) for batch in (whole, lean))
    for index, expected in whole.items():
        places = range(len(expected["input_ids"]))
        blocks = {expected["block_ids"][i] for i in places if expected["gammas"][i] > 0}
        blocks = blocks or {max(expected["block_ids"])}
        stays = [i for i in places if expected["stream_ids"][i] == 0 or expected["block_ids"][i] in blocks]
        assert lean[index] == {name: [values[i] for i in stays] for name, values in expected.items()}


# --- Draws ---

SEQUENCES = [
    sequence([text(40), text(9)], [3, 7]),
    sequence([text(25)], [12]),
    sequence([text(33), text(8), text(17)], [1, 40, 2]),
]


def test_draws_depend_on_nothing_but_the_sample():
    expected = by_sample(collator()(SEQUENCES), SEQUENCES)
    for order in ([2, 0, 1], [1]):
        sequences = [SEQUENCES[i] for i in order]
        found = by_sample(collator()(sequences), sequences)
        assert found == {index: expected[index] for index in found}
    lengths = {3: 40, 7: 9, 12: 25, 1: 33, 40: 8, 2: 17}
    one_sequence = [sequence([text(length) for length in lengths.values()], list(lengths))]
    assert by_sample(collator()(one_sequence), one_sequence) == expected
    alone = [sequence([text(length)], [index]) for index, length in lengths.items()]
    assert by_sample(collator()(alone), alone) == expected


def masked(batch):
    return (batch["input_ids"] == MASK).tolist()


def test_draws_depend_on_seed_epoch_and_index():
    one = collator()
    first = one(SEQUENCES)
    one.set_epoch(1)
    second = one(SEQUENCES)
    assert masked(first) != masked(second)
    one.set_epoch(0)
    assert masked(one(SEQUENCES)) == masked(first)
    assert masked(collator(seed=1)(SEQUENCES)) != masked(first)
    assert masked(collator()([sequence([text(40)], [0])])) != masked(collator()([sequence([text(40)], [1])]))


def test_evaluation_draws_the_same_in_every_epoch():
    training = collator(seed=5)
    evaluation = training.for_evaluation()
    first = evaluation(SEQUENCES)
    training.set_epoch(3)
    assert masked(evaluation(SEQUENCES)) == masked(first)
    assert masked(training(SEQUENCES)) != masked(first)
    assert masked(collator(seed=6).for_evaluation()(SEQUENCES)) != masked(first)


def test_workers_that_run_on_see_the_epoch():
    one = collator()
    loader = DataLoader(SEQUENCES * 2, batch_size=2, collate_fn=one, num_workers=2, persistent_workers=True)
    for epoch in (0, 1):
        one.set_epoch(epoch)
        alone = collator()
        alone.set_epoch(epoch)
        for i, batch in enumerate(loader):
            expected = alone((SEQUENCES * 2)[2 * i : 2 * i + 2])
            assert all(torch.equal(batch[name], expected[name]) for name in expected)


# --- Masks of a sample ---

maskables = st.lists(st.booleans(), min_size=1, max_size=40).map(np.array)


def drawn(maskable, block_size=4, seed=0, suffix_mask_probability=0.0):
    return draw_masks(np.asarray(maskable), block_size, np.random.default_rng(seed), suffix_mask_probability)


@given(maskables, st.integers(1, 12), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 1.0]))
def test_every_block_masks_its_share_of_what_is_maskable(maskable, block_size, seed, suffix_mask_probability):
    gammas, masked = drawn(maskable, block_size, seed, suffix_mask_probability)
    assert not (masked & ~maskable).any()
    assert len(gammas) == -(-len(maskable) // block_size)
    for block, gamma in enumerate(gammas):
        tokens = slice(block * block_size, (block + 1) * block_size)
        assert 0 < gamma <= 1
        assert masked[tokens].sum() == round(maskable[tokens].sum() * gamma)


def test_gamma_is_uniform_and_every_token_is_as_likely():
    gammas, masked = drawn(np.ones(32 * 4000, dtype=bool), block_size=32)
    counts, _ = np.histogram(gammas, bins=10, range=(0, 1))
    assert (abs(counts - 400) < 5 * 400**0.5).all()
    per_position = masked.reshape(4000, 32).mean(axis=0)  # each 1/2 on average
    assert (abs(per_position - 0.5) < 5 * (0.25 / 4000) ** 0.5).all()


def is_suffix(maskable, masked):
    (tokens,) = np.nonzero(maskable)
    return masked[tokens].tolist() == sorted(masked[tokens].tolist())


@given(maskables, st.integers(1, 12), st.integers(0, 1000))
def test_with_probability_1_every_block_masks_its_last_tokens(maskable, block_size, seed):
    _, masked = drawn(maskable, block_size, seed, suffix_mask_probability=1.0)
    for start in range(0, len(maskable), block_size):
        assert is_suffix(maskable[start : start + block_size], masked[start : start + block_size])


def test_a_share_of_the_blocks_masks_its_last_tokens_and_the_others_keep_their_draws():
    maskable = np.ones(32 * 1000, dtype=bool)
    gammas, masks = zip(*(drawn(maskable, 32, suffix_mask_probability=p) for p in (0.0, 0.3, 1.0)), strict=True)
    assert np.array_equal(gammas[0], gammas[1]) and np.array_equal(gammas[0], gammas[2])
    plain, some, suffixes = (masked.reshape(1000, 32) for masked in masks)
    is_plain, is_suffix = ((some == other).all(axis=1) for other in (plain, suffixes))
    assert (is_plain | is_suffix).all() and 0.25 < 1 - is_plain.mean() < 0.35


# --- Refusals ---


@pytest.mark.parametrize(
    "argument, message",
    [
        ({"mask_token_id": None}, "mask_token_id is None.*model.config.mask_token_id"),
        ({"block_size": 0}, "block_size=0 is not .*pass 1 or more"),
        ({"mask_draws": 0}, "mask_draws=0 is not a number of draws; pass 1 or more"),
        (
            {"suffix_mask_probability": 1.5},
            "suffix_mask_probability=1.5 is not a probability; pass a number from 0 to 1",
        ),
        ({"loss_weighting": "equal"}, "loss_weighting='equal' is not a choice; pass 'weighted' or 'uniform'"),
    ],
)
def test_arguments_out_of_range_are_refused(argument, message):
    with pytest.raises(ValueError, match=message):
        collator(**argument)


SUMS = "A sequence has 6 input_ids, .*sample_lengths=.*sample_indices=.*add up"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"labels": None}, "columns input_ids, .*, and labels is missing; pass input_ids"),
        ({"sample_lengths": [5]}, SUMS),
        ({"sample_lengths": [6, 0], "sample_indices": [0, 1]}, SUMS),
        ({"labels": [-100] * 5}, SUMS),
        ({"sample_indices": [0, 1]}, SUMS),
        ({"labels": [11, 12, 13, 14, 15, -100]}, "labels of sample 8 hold 11 at position 0, where input_ids hold 10"),
        ({"input_ids": [MASK] * 6, "labels": [-100, *[MASK] * 5]}, "sample 8 hold the MASK token, 9, at position 1, "),
    ],
)
def test_sequences_that_are_refused(change, message):
    columns = {name: values for name, values in {**sequence([text(6)], [8]), **change}.items() if values is not None}
    with pytest.raises(ValueError, match=message):
        collator()([columns])


def test_a_prompt_may_have_mask():
    collator()([sequence([[(MASK, False), (11, True)]])])

"""Packing against a slow best fit."""

import datasets
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from wedlm.training.packing import best_fit, pack, pack_batch
from wedlm.training.run_errors import TrainingError

LENGTHS = st.integers(4, 30).flatmap(
    lambda max_length: st.tuples(st.lists(st.integers(1, max_length), max_size=40), st.just(max_length))
)


def slow_best_fit(lengths, max_length):
    """Looks at every sequence for every sample. Which of two that fit equally well it takes does not matter."""
    rooms = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else max_length) - length)
    return rooms


@settings(deadline=None)
@given(LENGTHS)
def test_packing_loses_and_cuts_nothing_and_fits_as_the_slow_reference(case):
    lengths, max_length = case
    sequences = best_fit(lengths, max_length)
    assert sorted(sample for sequence in sequences for sample in sequence) == list(range(len(lengths)))
    sums = [sum(lengths[sample] for sample in sequence) for sequence in sequences]
    assert sorted(max_length - total for total in sums) == sorted(slow_best_fit(lengths, max_length))
    assert all(sequence == sorted(sequence) for sequence in sequences) and sequences == sorted(sequences)
    smallest = sorted(sums)[:2]
    assert len(sequences) < 2 or sum(smallest) > max_length  # no two sequences could be one


def test_a_sample_that_is_too_long_is_refused():
    with pytest.raises(TrainingError, match="of 11 tokens does not fit into a sequence of max_length=10; truncate or"):
        best_fit([3, 11], 10)


def test_a_dataset_is_packed_as_its_columns_are(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    lengths = [3, 6, 7, 2, 1, 9, 4]
    samples = {
        "input_ids": [[i] * length for i, length in enumerate(lengths)],
        "sample_lengths": [[length] for length in lengths],
    }
    packed = pack(Dataset.from_dict(samples), 10)
    assert {name: packed[name][:] for name in samples} == pack_batch(samples, 10)
    assert packed.cache_files  # on disk
    # Another length, or another dataset, is packed anew.
    assert len(pack(Dataset.from_dict(samples), 20)) < len(packed)
    assert len(pack(Dataset.from_dict({name: column[:2] for name, column in samples.items()}), 10)) == 1

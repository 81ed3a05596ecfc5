"""Packs samples into sequences: best fit, longest sample first, and no sample is cut."""

import inspect
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from datasets import Dataset
from datasets.fingerprint import Hasher

from wedlm.training.run_errors import TrainingError


def best_fit(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    """Decides which samples share a sequence of at most `max_length` tokens.

    From the longest on, each sample goes into the sequence where it leaves the least room, or into a new one. Samples
    keep their order inside a sequence, and sequences have the order of their first samples.

    Example:

        best_fit([3, 6, 7, 2], max_length=10) == [[0, 2], [1, 3]]
    """
    if lengths and max(lengths) > max_length:
        raise TrainingError(
            f"A sample of {max(lengths)} tokens does not fit into a sequence of max_length={max_length}; truncate or "
            "drop it first."
        )
    sequences_by_room: defaultdict[int, list[list[int]]] = defaultdict(list)
    rooms: list[int] = []  # sorted; each room that some sequence has left
    for sample in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[sample]
        nearest = bisect_left(rooms, length)
        if nearest == len(rooms):
            sequence, room = [], max_length
        else:
            room = rooms[nearest]
            sequence = sequences_by_room[room].pop()
            if not sequences_by_room[room]:
                del rooms[nearest]
        sequence.append(sample)
        if not sequences_by_room[room - length]:
            insort(rooms, room - length)
        sequences_by_room[room - length].append(sequence)
    return sorted(sorted(sequence) for sequences in sequences_by_room.values() for sequence in sequences)


def pack_batch(samples: dict[str, list], max_length: int) -> dict[str, list]:
    """Packs samples that are in memory as columns."""
    sequences = best_fit([len(input_ids) for input_ids in samples["input_ids"]], max_length)
    return {
        name: [list(chain.from_iterable(column[i] for i in sequence)) for sequence in sequences]
        for name, column in samples.items()
    }


def pack(samples: Dataset, max_length: int) -> Dataset:
    """Packs the samples of `prepare_dataset`. The result lies in the cache of datasets, not in memory."""
    sequences = best_fit([sum(lengths) for lengths in samples["sample_lengths"][:]], max_length)
    return Dataset.from_generator(
        packed_sequences,
        features=samples.features,
        gen_kwargs={"samples": samples, "sequences": tuple(sequences)},  # datasets takes a list for shards
        fingerprint=Hasher.hash((samples._fingerprint, sequences, inspect.getsource(packed_sequences))),
    )


def packed_sequences(samples: Dataset, sequences: Sequence[list[int]]) -> Iterator[dict[str, list[int]]]:
    for sequence in sequences:
        yield {name: list(chain.from_iterable(column)) for name, column in samples[sequence].items()}

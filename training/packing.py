"""Several samples in a row: best fit, longest first, and none is ever cut."""

import inspect
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from datasets import Dataset
from datasets.fingerprint import Hasher

from wedlm.training.errors import TrainingError


def best_fit(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    """Which samples share a row: from the longest on, each goes where it leaves the least room, or into a new row.

    Samples keep their order inside a row, and rows that of their first samples.

        best_fit([3, 6, 7, 2], max_length=10) == [[0, 2], [1, 3]]
    """
    if lengths and max(lengths) > max_length:
        raise TrainingError(f"A sample of {max(lengths)} tokens does not fit into a row of max_length={max_length}.")
    rows_by_room = defaultdict(list)
    rooms = []  # sorted: the rooms that some row has
    for sample in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[sample]
        place = bisect_left(rooms, length)
        if place == len(rooms):
            row, room = [], max_length
        else:
            room = rooms[place]
            row = rows_by_room[room].pop()
            if not rows_by_room[room]:
                del rooms[place]
        row.append(sample)
        if not rows_by_room[room - length]:
            insort(rooms, room - length)
        rows_by_room[room - length].append(row)
    return sorted(sorted(row) for rows in rows_by_room.values() for row in rows)


def pack_batch(samples: dict[str, list], max_length: int) -> dict[str, list]:
    """The columns of samples, as columns of packed rows."""
    rows = best_fit([len(input_ids) for input_ids in samples["input_ids"]], max_length)
    return {
        name: [list(chain.from_iterable(column[i] for i in row)) for row in rows] for name, column in samples.items()
    }


def pack(samples: Dataset, max_length: int) -> Dataset:
    """Best fit over the whole dataset; the packed rows are written to the cache of datasets, not held in memory."""
    rows = best_fit([sum(lengths) for lengths in samples["sample_lengths"][:]], max_length)
    return Dataset.from_generator(
        packed_rows,
        features=samples.features,
        gen_kwargs={"samples": samples, "rows": tuple(rows)},  # a list would be taken for shards
        fingerprint=Hasher.hash((samples._fingerprint, rows, inspect.getsource(packed_rows))),
    )


def packed_rows(samples: Dataset, rows: Sequence[list[int]]) -> Iterator[dict[str, list[int]]]:
    for row in rows:
        yield {name: list(chain.from_iterable(column)) for name, column in samples[row].items()}

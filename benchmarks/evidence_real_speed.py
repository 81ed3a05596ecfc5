"""The speed of all ways on the real model, in turns, for evidence_real.py: one prompt at a time, and in batches."""

import statistics
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from evidence_real_ways import BATCH_OF_ONE, PLAIN, Way
from tqdm.auto import tqdm

from wedlm.evaluation.resampling import median_and_quartiles
from wedlm.evaluation.turns import take_turns
from wedlm.evaluation.work_file import WorkFile

ALL = "all"


class Batch(NamedTuple):
    size: int
    group: str
    number: int  # among those of its size and group


def batches_of(prompts: dict[str, list[list[int]]], sizes: list[int]) -> dict[Batch, list[list[int]]]:
    """The prompts of each group in batches of each size.

    Args:
        prompts (`dict[str, list[list[int]]]`): Ids of prompts by group.
        sizes (`list[int]`): The sizes of batches. The last batch of a group may have fewer.
    """
    return {
        Batch(size, group, start // size): of_group[start : start + size]
        for size, (group, of_group) in product(sizes, prompts.items())
        for start in range(0, len(of_group), size)
    }


def ways_for(ways: dict[str, Way], size: int) -> dict[str, Way]:
    return {name: way for name, way in ways.items() if size == 1 or name not in BATCH_OF_ONE}


def missing(batches: dict[Batch, list], rounds: int, work: WorkFile) -> list[tuple[int, Batch]]:
    """The rounds of batches that `work` does not have yet, in the order in which they are measured."""
    sizes = dict.fromkeys(batch.size for batch in batches)
    ordered = [(number, each) for size in sizes for number in range(rounds) for each in batches if each.size == size]
    return [(number, batch) for number, batch in ordered if ("speed", *batch, number) not in work]


def measure(
    ways: dict[str, Way], batches: dict[Batch, list[list[int]]], new_tokens: int, rounds: int, work: WorkFile
) -> None:
    """Measures what `work` lacks: in each round all ways take turns on each batch, and another one begins.

    Before the first batch of a size every way writes it once, so that it has found out what its steps cost.
    """
    to_do, warm = missing(batches, rounds, work), set()
    for place, (number, batch) in enumerate(tqdm(to_do, unit=" batches", desc="speed")):
        here = ways_for(ways, batch.size)
        calls = {name: partial(way, batches[batch], new_tokens) for name, way in here.items()}
        num_warm_up = int(batch.size not in warm)
        warm.add(batch.size)
        taken = list(take_turns(calls, "cpu", 1, num_warm_up, first=place % len(calls)))
        results = {turn.name: {"seconds": turn.seconds, **turn.result._asdict()} for turn in taken}
        work.add(("speed", *batch, number), {name: results[name] for name in here})


def speeds(batches: dict[Batch, list], rounds: int, work: WorkFile) -> list[dict[str, Any]]:
    """The numbers of each size of batches and group, and of all groups together."""
    groups = [*dict.fromkeys(batch.group for batch in batches), ALL]
    cells = []
    for size, group in product(dict.fromkeys(batch.size for batch in batches), groups):
        chosen = [batch for batch in batches if batch.size == size and group in (batch.group, ALL)]
        taken = [[work["speed", *batch, number] for number in range(rounds)] for batch in chosen]
        ways = {name: numbers(name, taken) for name in taken[0][0]}
        prompts = sum(len(batches[batch]) for batch in chosen)
        cells.append({"batch_size": size, "group": group, "prompts": prompts, "ways": ways})
    return cells


def numbers(name: str, taken: list[list[dict[str, dict]]]) -> dict[str, Any]:
    """The numbers of a way: the speed on a batch is that of its median round.

    Args:
        name (`str`): The way.
        taken (`list[list[dict]]`): The results of all ways by name, for each batch and round.
    """
    speed, plain = (np.array([speed_of([each[way] for each in rounds]) for rounds in taken]) for way in (name, PLAIN))
    texts, plain_texts = ([text for rounds in taken for text in rounds[0][way]["tokens"]] for way in (name, PLAIN))
    return {
        "tokens_per_second": median_and_quartiles(speed),
        "tokens_per_forward": per_forward([rounds[0][name] for rounds in taken]),
        "times_generate": median_and_quartiles(speed / plain),
        "same_texts": sum(map(list.__eq__, texts, plain_texts)),
    }


def per_forward(taken: list[dict[str, Any]]) -> float | None:
    """Tokens per forward over all batches; None where the way counts no forwards."""
    if any(each["forwards"] is None for each in taken):
        return None
    return sum(len(text) for each in taken for text in each["tokens"]) / sum(sum(each["forwards"]) for each in taken)


def speed_of(rounds: list[dict[str, Any]]) -> float:
    """Tokens per second, the median of the rounds: in bfloat16 a text may be of another length in another round."""
    return statistics.median(sum(map(len, each["tokens"])) / each["seconds"] for each in rounds)

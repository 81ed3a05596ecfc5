"""The prompts of `wedlm adapt` where the user gives none: questions and tasks of many kinds, all words our own."""

import json
import lzma
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

FILE = Path(__file__).with_name("prompts.jsonl.xz")
with lzma.open(FILE, "rt", encoding="utf-8") as file:
    HEAD = json.loads(file.readline())  # the licence, the seed of the file's order, the kinds, the numbers of prompts
KINDS = tuple(HEAD["kinds"])


class Prompt(NamedTuple):
    """A request to a chat assistant: Prompt(kind="explanation", text="Why is the sky blue?")"""

    kind: str
    text: str


@cache
def all_prompts() -> dict[str, list[Prompt]]:
    """The prompts of the file, by split and in its order, in which the kinds alternate."""
    splits = {"train": [], "held_out": []}
    with lzma.open(FILE, "rt", encoding="utf-8") as file:
        file.readline()
        for line in map(json.loads, file):
            splits[line["split"]].append(Prompt(line["kind"], line["prompt"]))
    return splits


def most_prompts(held_out: bool) -> int:
    return HEAD["held_out" if held_out else "train"]


def read_prompts(num_prompts: int, seed: int = 0, held_out: bool = False) -> list[Prompt]:
    """Different prompts of alternating kinds. No held-out prompt is a training prompt in other words.

    Each seed gives another order, and a longer list begins with the shorter one. 0 gives the order of the file, in
    which SmolLM2's adapter in `hub_card/` was trained.
    """
    most = most_prompts(held_out)
    if not 0 <= num_prompts <= most:
        raise ValueError(f"num_prompts={num_prompts} must be between 0 and {most}, the number of different prompts.")
    prompts = all_prompts()["held_out" if held_out else "train"]
    rounds = [prompts[start : start + len(KINDS)] for start in range(0, most, len(KINDS))]
    if seed != HEAD["seed"]:
        Random(seed).shuffle(rounds)
    return [prompt for prompts in rounds for prompt in prompts][:num_prompts]

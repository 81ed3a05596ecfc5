"""The functions that the YAML files of this folder refer to: prompts whose answers a program can score."""

import json
import re
from itertools import count, islice
from random import Random

from datasets import Dataset, DatasetDict

from wedlm.adapters.prompts import DRAW, is_held_out

FENCED = re.compile(r"```\w*\n(.*?)(?:```|\Z)", re.DOTALL)


def code_of(answer: str) -> str:
    """The first block of code in an answer; without one, all of it."""
    found = FENCED.search(answer)
    return found[1] if found else answer


def score_json(key: str, answer: str) -> float:
    """Whether the answer is JSON."""
    try:
        json.loads(code_of(answer))
    except ValueError:
        return 0.0
    return 1.0


def score_copying(key: str, answer: str) -> float:
    """The share of the text's sentences that the answer has word for word."""
    sentences = key.split(". ")
    return sum(sentence in answer for sentence in sentences) / len(sentences)


SCORES = {"json": score_json, "copying": score_copying}


def dataset(kind: str, num_examples: int = 200, **_: object) -> DatasetDict:
    """Held-out prompts of a kind of `wedlm adapt`'s prompts, as lm-eval loads them."""
    drawn = (DRAW[kind](Random(seed)) for seed in count())
    chosen = ({"kind": kind, "key": key, "prompt": text} for key, text in drawn if is_held_out(kind, key))
    return DatasetDict({"test": Dataset.from_list(list(islice(chosen, num_examples)))})


def process_results(record: dict[str, str], results: list[str]) -> dict[str, float]:
    return {"score": SCORES[record["kind"]](record["key"], results[0])}

"""The functions that the YAML files of this folder refer to: prompts whose answers a program can score."""

import json
import lzma
import re
from pathlib import Path

from datasets import Dataset, DatasetDict

FILE = Path(__file__).with_name("questions.jsonl.xz")  # held-out prompts of two of the kinds of `wedlm adapt`
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


def dataset(kind: str, **_: object) -> DatasetDict:
    """The prompts of a kind, as lm-eval loads them."""
    with lzma.open(FILE, "rt", encoding="utf-8") as file:
        records = [record for record in map(json.loads, file) if record["kind"] == kind]
    return DatasetDict({"test": Dataset.from_list(records)})


def process_results(record: dict[str, str], results: list[str]) -> dict[str, float]:
    return {"score": SCORES[record["kind"]](record["key"], results[0])}

"""Writes the questions of some kinds of tasks with right answers, to train a model on and to test it.

    python -m examples.task_data build/task [--kinds counting equations] [--train 12000 --test 500] [--seed 0]

The kinds are the demo's (examples/demo), and take turns. OUT/train.jsonl has chats, as `wedlm train` reads them, and
OUT/test.jsonl other questions, as `wedlm tune` reads them. Another --seed writes other test questions.
"""

import argparse
import json
import math
from collections.abc import Iterable
from pathlib import Path

from examples.demo.example import Example
from examples.demo.tasks import KINDS, example, held_out_examples
from wedlm.checkpoints.whole_file import write_whole

TASKS = tuple(kind for kind in KINDS if kind != "stories")  # which have no right answer to compare with


def train_examples(kinds: list[str], number: int) -> list[Example]:
    return [example(kinds[index % len(kinds)], "train", index) for index in range(number)]


def test_examples(kinds: list[str], number: int, seed: int = 0) -> list[Example]:
    """Questions that are not in the training data, as many of each kind."""
    each = [held_out_examples(kind, math.ceil(number / len(kinds)), seed) for kind in kinds]
    return [one for turn in zip(*each, strict=True) for one in turn][:number]


def write_lines(path: Path, records: Iterable[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--kinds", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--train", type=int, default=10_500, help="the number of questions to train on")
    parser.add_argument("--test", type=int, default=500, help="the number of questions to test with")
    parser.add_argument("--seed", type=int, default=0, help="of the test questions")
    given = parser.parse_args()
    taught = train_examples(given.kinds, given.train)
    write_lines(given.out / "train.jsonl", ({"messages": each.messages} for each in taught))
    asked = test_examples(given.kinds, given.test, given.seed)
    write_lines(given.out / "test.jsonl", ({"prompt": each.prompt, "answer": each.answer} for each in asked))
    print(f"Written: {given.out}/train.jsonl and test.jsonl.")


if __name__ == "__main__":
    main()

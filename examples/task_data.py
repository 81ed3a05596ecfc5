"""Writes the questions of some kinds of tasks with right answers, to train a model on and to test it.

    python -m examples.task_data build/task [--kinds counting equations] [--train 12000 --test 500] [--seed 0]

The kinds take turns. They are the demo's (examples/demo) and some of reasoning-gym's (`pip install reasoning-gym`;
start polynomial_multiplication with PYTHONHASHSEED=0).
OUT/train.jsonl has chats, as `wedlm train` reads them, and OUT/test.jsonl other questions, as `wedlm tune` reads them.
Another --seed writes other test questions.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from examples.demo import tasks
from examples.demo.example import Example
from wedlm.checkpoints.whole_file import write_whole

TASKS = tuple(kind for kind in tasks.KINDS if kind != "stories")  # which have no right answer to compare with
# Kinds of reasoning-gym, in small sizes.
GYM_TASKS: dict[str, dict[str, int]] = {
    "number_sorting": {"max_numbers": 6},
    "word_sorting": {"max_words": 6},
    "word_sequence_reversal": {},
    "rotate_matrix": {"max_n": 4},
    "polynomial_multiplication": {"max_terms": 2, "max_value": 20, "max_polynomials": 2},
}
GYM_SEEDS = 10**8  # reasoning-gym makes question i of a seed with seed + i


@cache
def gym(kind: str) -> Any:
    """All questions of a kind, made as they are asked for: first those to train on, then those of each test seed."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise SystemExit(
            f"The questions of {kind} come from reasoning-gym: pip install reasoning-gym ({error})."
        ) from error
    if kind == "polynomial_multiplication" and sys.flags.hash_randomization:  # it draws from a set
        raise SystemExit(f"The questions of {kind} depend on Python's hash seed; start with PYTHONHASHSEED=0.")
    return reasoning_gym.create_dataset(kind, seed=0, size=2**31, **GYM_TASKS[kind])


def gym_example(kind: str, index: int) -> Example:
    entry = gym(kind)[index]
    return Example(kind, entry["question"].strip(), entry["answer"], str(index))


def train_examples(kinds: list[str], number: int) -> list[Example]:
    turns = [(kinds[index % len(kinds)], index) for index in range(number)]
    return [gym_example(*turn) if turn[0] in GYM_TASKS else tasks.example(turn[0], "train", turn[1]) for turn in turns]


def held_out_examples(kind: str, number: int, seed: int) -> list[Example]:
    if kind not in GYM_TASKS:
        return tasks.held_out_examples(kind, number, seed)
    return [gym_example(kind, (1 + seed) * GYM_SEEDS + index) for index in range(number)]


def test_examples(kinds: list[str], number: int, seed: int = 0) -> list[Example]:
    """Questions that are not in the training data, as many of each kind."""
    each = [held_out_examples(kind, math.ceil(number / len(kinds)), seed) for kind in kinds]
    return [one for turn in zip(*each, strict=True) for one in turn][:number]


def check(example: Example, answer: str) -> bool:
    """Whether an answer is right."""
    if example.kind not in GYM_TASKS:
        return tasks.check(example, answer)
    if example.kind == "polynomial_multiplication":  # which reasoning-gym would run as Python code
        return answer.strip() == example.answer
    questions = gym(example.kind)
    return questions.score_answer(answer.strip(), questions[int(example.key)]) == 1


def write_lines(path: Path, records: Iterable[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--kinds", nargs="+", choices=[*TASKS, *GYM_TASKS], default=TASKS)
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

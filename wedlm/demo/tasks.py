"""The examples of the demo checkpoint: six kinds of text, from one with no choice at all to one with plenty."""

from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from random import Random
from typing import Literal, NamedTuple

from wedlm.demo import counting, equations, functions, records, stories, word_problems

Split = Literal["train", "test"]

DRAW = {
    "counting": counting.draw,
    "word_problems": word_problems.draw,
    "equations": equations.draw,
    "records": records.draw,
    "functions": functions.draw,
    "stories": stories.draw,
}
KINDS = tuple(DRAW)
# Shares of the training stream: most for what has to be computed.
WEIGHTS = {"counting": 4, "word_problems": 5, "equations": 4, "records": 4, "functions": 2, "stories": 2}
TEST_SHARE = 8  # one key in so many is held out
SHARE_OF_TWO_TURNS = 0.25  # of the conversations
MAX_POSITIONS = 2**40  # of one training stream


class Example(NamedTuple):
    """A question and an answer to it; `key` is what makes the problem, whatever the words it is put in.

    Example(kind="counting", prompt="Count by 4 from 12 to 24.", answer="12, 16, 20, 24.", key="12 4")
    """

    kind: str
    prompt: str
    answer: str
    key: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.answer}]


def split_of(kind: str, key: str) -> Split:
    """A hash of the key alone decides, so no test problem is in any training stream, however long."""
    digest = sha256(f"{kind} {key}".encode()).digest()
    return "test" if int.from_bytes(digest[:8]) % TEST_SHARE == 0 else "train"


def example(kind: str, split: Split, index: int) -> Example:
    """Depends on its arguments and on nothing else."""
    random = Random(f"{kind} {split} {index}")
    while True:
        drawn = Example(kind, *DRAW[kind](random))
        if split_of(kind, drawn.key) == split:
            return drawn


def held_out_examples(kind: str, number: int, seed: int = 0) -> list[Example]:
    """The first `number` test examples of a seed, no two with the same key."""
    by_key = {}
    for index in count(seed * MAX_POSITIONS):
        if len(by_key) == number:
            return list(by_key.values())
        drawn = example(kind, "test", index)
        by_key.setdefault(drawn.key, drawn)


def training_example(seed: int, position: int) -> Example:
    index = seed * MAX_POSITIONS + position
    (kind,) = Random(f"kind {index}").choices(KINDS, [WEIGHTS[kind] for kind in KINDS])
    return example(kind, "train", index)


def conversation(seed: int, number: int) -> list[dict[str, str]]:
    """The messages of a training example, sometimes with another behind it, so that chats have more than one turn."""
    messages = training_example(seed, 2 * number).messages
    if Random(f"turns {seed} {number}").random() < SHARE_OF_TWO_TURNS:
        messages += training_example(seed, 2 * number + 1).messages
    return messages


def training_examples(seed: int, start: int = 0) -> Iterator[Example]:
    """Endless; `start` is where to go on."""
    return (training_example(seed, position) for position in count(start))

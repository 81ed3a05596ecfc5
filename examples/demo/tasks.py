"""The examples of the demo checkpoint: six kinds, from answers without a choice (counting) to free ones (stories).

The module of a kind draws examples, and checks any answer to them, in whatever words.
"""

from hashlib import sha256
from itertools import count
from random import Random
from typing import Literal

from examples.demo import counting, equations, functions, records, stories, word_problems
from examples.demo.example import Example

MODULES = (counting, word_problems, equations, records, functions, stories)
KIND_MODULES = {module.__name__.rpartition(".")[2]: module for module in MODULES}
KINDS = tuple(KIND_MODULES)
# Relative frequency in the training stream: kinds that are hard to learn come most often.
WEIGHTS = {"counting": 5, "word_problems": 5, "equations": 3, "records": 5, "functions": 2, "stories": 2}
TEST_SHARE = 8  # one key in 8 is held out
SHARE_OF_TWO_TURNS = 0.25  # of conversations with two questions
MAX_POSITIONS = 2**40  # length limit of a training stream
MAX_NEW_TOKENS = 160  # the longest right answer has 88

Split = Literal["train", "test"]


def check(example: Example, answer: str) -> bool:
    """Whether an answer is right; a story is if it is well-formed and agrees with the question."""
    return KIND_MODULES[example.kind].check(example, answer)


def split_of(kind: str, key: str) -> Split:
    """The split of a problem. A hash of the key decides, so that no training stream contains a test problem."""
    digest = sha256(f"{kind} {key}".encode()).digest()
    return "test" if int.from_bytes(digest[:8]) % TEST_SHARE == 0 else "train"


def example(kind: str, split: Split, index: int) -> Example:
    """The example with this index, which depends on nothing but the arguments."""
    random = Random(f"{kind} {split} {index}")
    while True:
        drawn = Example(kind, *KIND_MODULES[kind].draw(random))
        if split_of(kind, drawn.key) == split:
            return drawn


def held_out_examples(kind: str, number: int, seed: int = 0) -> list[Example]:
    """The first test examples of a seed, no two of them with the same key."""
    by_key = {}
    for index in count(seed * MAX_POSITIONS):
        if len(by_key) == number:
            return list(by_key.values())
        drawn = example(kind, "test", index)
        by_key.setdefault(drawn.key, drawn)


def training_example(seed: int, position: int, weights: dict[str, int] = WEIGHTS) -> Example:
    """The example at this position of the training stream with this seed and these frequencies of kinds."""
    index = seed * MAX_POSITIONS + position
    (kind,) = Random(f"kind {index}").choices(KINDS, [weights[kind] for kind in KINDS])
    return example(kind, "train", index)


def conversation(seed: int, number: int) -> list[Example]:
    """The examples of a conversation of the training stream; a second one follows in a quarter of them."""
    examples = [training_example(seed, 2 * number)]
    if Random(f"turns {seed} {number}").random() < SHARE_OF_TWO_TURNS:
        examples.append(training_example(seed, 2 * number + 1))
    return examples


def messages_of(examples: list[Example]) -> list[dict[str, str]]:
    return [message for example in examples for message in example.messages]


def batch_of(tokenizer, examples: list[Example], device):
    """The questions of the examples as inputs of `generate()`, padded on the left."""
    chats = [example.messages[:1] for example in examples]
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    ).to(device)

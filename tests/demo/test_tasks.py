"""Examples depend on their arguments alone, no held-out problem is trained on, and the stream mixes the kinds."""

import re

import pytest
from helpers import REPOSITORY, run_python

from examples.demo.counting import expected
from examples.demo.equations import equation_in, value_of
from examples.demo.tasks import (
    KINDS,
    WEIGHTS,
    example,
    held_out_examples,
    split_of,
    training_example,
)

NUM_HELD_OUT = 1000
STREAM_LENGTH = 10_000


@pytest.fixture(scope="module")
def stream():
    return [training_example(7, position) for position in range(STREAM_LENGTH)]


@pytest.fixture(scope="module")
def held_out():
    return {kind: held_out_examples(kind, NUM_HELD_OUT) for kind in KINDS}


@pytest.mark.full
def test_no_test_problem_is_in_the_training_stream(stream, held_out):
    keys = {(drawn.kind, drawn.key) for drawn in stream}
    prompts = {drawn.prompt for drawn in stream}
    for kind, examples in held_out.items():
        assert len({drawn.key for drawn in examples}) == NUM_HELD_OUT
        assert all(split_of(kind, drawn.key) == "test" for drawn in examples)
        assert not keys & {(kind, drawn.key) for drawn in examples}
        assert not prompts & {drawn.prompt for drawn in examples}
    assert all(split_of(*pair) == "train" for pair in keys)
    # Elsewhere than by the hash, the two look alike: about one key in eight is held out.
    assert 0.1 < sum(split_of("counting", f"{first} 3") == "test" for first in range(900)) / 900 < 0.15


def test_the_key_is_the_problem_in_whatever_words(stream):
    for drawn in stream:
        if drawn.kind == "counting":
            first, second = expected(drawn.prompt)[:2]
            assert drawn.key == f"{first} {second - first}"
        elif drawn.kind == "equations":
            (letter,) = {*re.findall("[a-z]", drawn.answer.split(":")[-1])}
            sides = [
                (value_of(side, letter, 1) - value_of(side, letter, 0), value_of(side, letter, 0))
                for side in equation_in(drawn.prompt).split(" = ")
            ]
            sides = [f"{factor} {constant}" for factor, constant in sides]
            assert drawn.key in (" = ".join(sides), " = ".join(sides[::-1]))
            assert not drawn.key.startswith("0 ")  # one of the two
        elif drawn.kind == "word_problems":
            assert drawn.key == " ".join(map("".join, re.findall(r"(\d+) (\S) (\d+) = ", drawn.answer)))


def test_an_example_depends_on_its_arguments_and_on_nothing_else(stream, tmp_path):
    code = (
        "from examples.demo.tasks import training_example\n"
        "import sys; assert 'torch' not in sys.modules\n"
        "for position in range(300): print(repr(training_example(7, position)))"
    )
    printed = run_python(code, tmp_path, PYTHONPATH=str(REPOSITORY), PYTHONHASHSEED="1").splitlines()
    assert printed == [repr(drawn) for drawn in stream[:300]]


def test_another_seed_gives_another_stream(stream):
    assert training_example(8, 55) != stream[55]


def test_the_stream_mixes_the_kinds_by_their_weights(stream):
    for kind in KINDS:
        share = sum(drawn.kind == kind for drawn in stream) / len(stream)
        assert share == pytest.approx(WEIGHTS[kind] / sum(WEIGHTS.values()), abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_put_in_many_ways(stream, kind):
    words = [re.findall("[A-Za-z]+", drawn.prompt) for drawn in stream if drawn.kind == kind]
    stripped = (tuple(word for word in prompt if not word[0].isupper() or prompt[0] == word)[:3] for prompt in words)
    assert len(set(stripped)) >= 8


def test_numbers_have_at_most_three_digits_and_nothing_is_below_zero(stream):
    for drawn in stream:
        numbers = re.findall(r"\d+", drawn.prompt + "\n" + drawn.answer)
        assert all(int(number) <= 999 for number in numbers), drawn
        assert drawn.kind == "functions" or not re.search(r"(?<![\w)] )-\d", drawn.answer), drawn


def test_messages_are_turns_of_a_chat():
    drawn = example("counting", "test", 0)
    assert drawn.messages == [
        {"role": "user", "content": drawn.prompt},
        {"role": "assistant", "content": drawn.answer},
    ]

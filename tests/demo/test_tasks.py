"""Examples depend on their arguments alone, no held-out problem is trained on, and the stream mixes the kinds."""

import re

import pytest
from helpers import REPOSITORY, run_python

from examples.demo.tasks import KINDS, WEIGHTS, held_out_examples, split_of, training_example

NUM_HELD_OUT = 300
STREAM_LENGTH = 3_000


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


def test_an_example_depends_on_its_arguments_and_on_nothing_else(stream, tmp_path):
    code = (
        "from examples.demo.tasks import training_example\n"
        "import sys; assert 'torch' not in sys.modules\n"
        "for position in range(100): print(repr(training_example(7, position)))"
    )
    printed = run_python(code, tmp_path, PYTHONPATH=str(REPOSITORY), PYTHONHASHSEED="1").splitlines()
    assert printed == [repr(drawn) for drawn in stream[:100]]


def test_the_stream_mixes_the_kinds_by_their_weights(stream):
    for kind in KINDS:
        share = sum(drawn.kind == kind for drawn in stream) / len(stream)
        assert share == pytest.approx(WEIGHTS[kind] / sum(WEIGHTS.values()), abs=0.03)


def test_numbers_have_at_most_three_digits_and_nothing_is_below_zero(stream):
    for drawn in stream:
        numbers = re.findall(r"\d+", drawn.prompt + "\n" + drawn.answer)
        assert all(int(number) <= 999 for number in numbers), drawn
        assert drawn.kind == "functions" or not re.search(r"(?<![\w)] )-\d", drawn.answer), drawn

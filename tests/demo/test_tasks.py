"""Examples depend on their arguments alone, and no held-out problem is trained on."""

import pytest

from examples.demo.model import SEED
from examples.demo.recipe import STEPS, conversations_of, stages_of
from examples.demo.tasks import KINDS, WEIGHTS, conversation, held_out_examples, split_of
from wedlm.evaluation.work_file import digest_of


def test_the_examples_are_those_that_the_demo_checkpoint_was_trained_and_measured_on():
    """Other ones, of changed generators, would mix what is trained on with what is held out."""
    trained = [conversation(SEED, number) for number in range(1000)]
    held_out = [held_out_examples(kind, 30, seed) for kind in KINDS for seed in (0, 1)]
    assert (digest_of(trained), digest_of(held_out)) == ("495b0f9876d8342a", "ecd22c8ae8c23a33")


def test_a_problem_is_held_out_by_its_key():
    for kind in KINDS:
        examples = held_out_examples(kind, 300)
        assert len({drawn.key for drawn in examples}) == 300
        assert all(split_of(kind, drawn.key) == "test" for drawn in examples)
    # About one key in eight is held out.
    assert 0.1 < sum(split_of("counting", f"{first} 3") == "test" for first in range(900)) / 900 < 0.15
    drawn = [example for number in range(1000) for example in conversation(SEED, number)]
    assert all(split_of(each.kind, each.key) == "train" for each in drawn)
    shares = {kind: sum(each.kind == kind for each in drawn) / len(drawn) for kind in KINDS}
    assert shares == pytest.approx(
        {kind: weight / sum(WEIGHTS.values()) for kind, weight in WEIGHTS.items()}, abs=0.03
    )


@pytest.mark.slow
def test_no_held_out_question_is_in_the_training_stream():
    """All of it, and by the words of the question: the key alone is what the generators keep apart by."""
    held_out = {hash(example.prompt) for kind in KINDS for example in held_out_examples(kind, 1000)}
    stream = [example for stage in stages_of(STEPS) for examples in conversations_of(stage) for example in examples]
    prompts = {hash(example.prompt) for example in stream}
    assert len(held_out) > 5900 and len(prompts) > 100_000 and not prompts & held_out

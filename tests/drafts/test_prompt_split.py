"""The prompts of a run: what is held out is never trained on."""

import json
from dataclasses import replace

import pytest
from adapt_runs import write_prompts
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.drafts.prompt_split import examples_of, split
from wedlm.drafts.settings import AdaptSettings
from wedlm.evaluation.tuning import Example


@given(st.lists(st.integers(0, 30), min_size=4, max_size=60), st.integers(1, 20), st.integers(0, 3))
@property_settings(60)
def test_no_prompt_is_on_both_sides(numbers, num_held_out, seed):
    examples = [Example("kind", f"prompt {number}", str(place)) for place, number in enumerate(numbers)]
    settings = AdaptSettings("model", num_held_out=num_held_out, seed=seed)
    if len(set(numbers)) < 4:
        with pytest.raises(ValueError, match="too few to hold some out"):
            split(examples, settings, "--prompts")
        return
    train, held_out = split(examples, settings, "--prompts")
    prompts = [{example.prompt for example in part} for part in (train, held_out)]
    assert not prompts[0] & prompts[1] and prompts[0] | prompts[1] == {example.prompt for example in examples}
    assert len(held_out) == len(prompts[1]) == min(num_held_out, len(set(numbers)) // 4)
    assert train == [example for example in examples if example.prompt in prompts[0]]  # in the order of the file


def test_the_package_makes_prompts_of_many_kinds():
    examples = examples_of(AdaptSettings("model", num_prompts=45, num_held_out=30))
    assert (len(examples.train), len(examples.held_out), examples.also) == (45, 30, [])
    assert (
        len({example.kind for example in examples.train}) == len({example.kind for example in examples.held_out}) == 15
    )
    assert not {example.prompt for example in examples.train} & {example.prompt for example in examples.held_out}
    assert examples_of(AdaptSettings("model", num_prompts=45, num_held_out=30, seed=1)).train != examples.train


def test_answers_are_kept_for_training_only(tmp_path):
    file = write_prompts(tmp_path / "log.jsonl", 12, answer="yes")
    asked = examples_of(AdaptSettings("model", prompts=file, num_held_out=2))
    assert {example.answer for example in asked.train + asked.held_out} == {None}
    given_answers = examples_of(AdaptSettings("model", answers=file, num_held_out=2))
    assert {example.answer for example in given_answers.train} == {"yes"}
    assert {example.answer for example in given_answers.held_out} == {None}
    assert {example.kind for example in given_answers.train} == {"log"}


def test_prompts_that_are_trained_on_are_not_measured(tmp_path):
    """Also where one file has them as texts and the other as messages."""
    file = write_prompts(tmp_path / "prompts.jsonl", 12)
    settings = AdaptSettings("model", prompts=file, num_held_out=2)
    (trained, *_), (held_out, *_), _ = examples_of(settings)
    also = tmp_path / "also.jsonl"
    also.write_text(
        json.dumps({"messages": trained.messages()}) + "\n" + json.dumps({"prompt": held_out.prompt}) + "\n"
    )
    with pytest.raises(
        ValueError, match="the adapter is trained on 1 of these 2 prompts, .*also.jsonl, line 1 for ex"
    ):
        examples_of(replace(settings, measure_also=also))
    other = write_prompts(tmp_path / "other.jsonl", 3, suffix="?")
    assert [example.kind for example in examples_of(replace(settings, measure_also=other)).also] == ["other"] * 3


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "answers",
            '{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n{"prompt": "d"}\n',
            "--answers .* without answers",
        ),
        ("prompts", '{"prompt": "a"}\n' * 9, "--prompts .* has 1 different prompts, too few .*; give at least 4"),
        ("prompts", "", "--prompts .* holds no examples; write a line of JSON for each"),
        ("measure_also", "{", "line 1: not JSON"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, sentence):
    file = tmp_path / "file.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=sentence):
        examples_of(AdaptSettings("model", **{name: file}))

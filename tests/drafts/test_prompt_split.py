"""The prompts of a run: what is held out is never trained on."""

import json
from dataclasses import replace

import pytest
from adapt_runs import write_prompts
from hypothesis import given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.drafts.prompt_split import Task, read_tasks, split
from wedlm.drafts.settings import AdaptSettings


@given(st.lists(st.integers(0, 30), min_size=4, max_size=60), st.integers(1, 20), st.integers(0, 3))
@property_settings(60)
def test_no_prompt_is_on_both_sides(numbers, num_held_out, seed):
    tasks = [Task("kind", f"prompt {number}", str(place)) for place, number in enumerate(numbers)]
    settings = AdaptSettings("model", num_held_out=num_held_out, seed=seed)
    if len(set(numbers)) < 4:
        with pytest.raises(ValueError, match="too few to hold some out"):
            split(tasks, settings, "--prompts")
        return
    train, held_out = split(tasks, settings, "--prompts")
    prompts = [{task.prompt for task in part} for part in (train, held_out)]
    assert not prompts[0] & prompts[1] and prompts[0] | prompts[1] == {task.prompt for task in tasks}
    assert len(held_out) == len(prompts[1]) == min(num_held_out, len(set(numbers)) // 4)
    assert train == [task for task in tasks if task.prompt in prompts[0]]  # in the order of the file


def test_the_package_makes_prompts_of_many_kinds():
    tasks = read_tasks(AdaptSettings("model", num_prompts=45, num_held_out=30))
    assert (len(tasks.train), len(tasks.held_out), tasks.also) == (45, 30, [])
    assert len({task.kind for task in tasks.train}) == len({task.kind for task in tasks.held_out}) == 15
    assert not {task.prompt for task in tasks.train} & {task.prompt for task in tasks.held_out}
    assert read_tasks(AdaptSettings("model", num_prompts=45, num_held_out=30, seed=1)).train != tasks.train


def test_answers_are_kept_for_training_only(tmp_path):
    file = write_prompts(tmp_path / "log.jsonl", 12, answer="yes")
    asked = read_tasks(AdaptSettings("model", prompts=file, num_held_out=2))
    assert {task.answer for task in asked.train + asked.held_out} == {None}
    given_answers = read_tasks(AdaptSettings("model", answers=file, num_held_out=2))
    assert {task.answer for task in given_answers.train} == {"yes"}
    assert {task.answer for task in given_answers.held_out} == {None}
    assert {task.kind for task in given_answers.train} == {"log"}


def test_prompts_that_are_trained_on_are_not_measured(tmp_path):
    """Also where one file has them as texts and the other as messages."""
    file = write_prompts(tmp_path / "prompts.jsonl", 12)
    settings = AdaptSettings("model", prompts=file, num_held_out=2)
    (trained, *_), (held_out, *_), _ = read_tasks(settings)
    also = tmp_path / "also.jsonl"
    also.write_text(
        json.dumps({"messages": trained.messages()}) + "\n" + json.dumps({"prompt": held_out.prompt}) + "\n"
    )
    with pytest.raises(
        ValueError, match="the adapter is trained on 1 of these 2 prompts, .*also.jsonl, line 1 for ex"
    ):
        read_tasks(replace(settings, measure_also=also))
    other = write_prompts(tmp_path / "other.jsonl", 3, suffix="?")
    assert [task.kind for task in read_tasks(replace(settings, measure_also=other)).also] == ["other"] * 3


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
        read_tasks(AdaptSettings("model", **{name: file}))

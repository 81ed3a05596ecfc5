"""Results: counts of a group are sums, and its other entries are those that all its tasks share."""

import pytest
from evaluations import STREAMING, evaluate, named, scores

from wedlm.evaluation.choices import Choices
from wedlm.evaluation.results import shared
from wedlm.evaluation.work_file import WorkFile


@pytest.mark.full
def test_a_group_adds_up_its_tasks(demo, tmp_path):
    choices = Choices(batch_size=4, apply_chat_template=True, run_code=True)
    results = evaluate(
        *demo, named("demo", num_examples=2), {"": {"decoding": "verified"}}, choices, WorkFile(tmp_path, {})
    )
    *members, group = results
    assert group["is_group"] and not any(result["is_group"] for result in members) and len(members) == 6
    assert group["num_tokens"] == sum(result["num_tokens"] for result in members)
    assert group["num_examples"] == 12
    assert scores([group])["demo", "right"] == pytest.approx(
        sum(scores(members)[result["task"], "right"] for result in members) / 6
    )


def test_a_group_says_only_what_its_tasks_share(demo, task_folder, tmp_path):
    (task_folder / "both.yaml").write_text("group: both\ntask: [choose, first]\n")
    work = WorkFile(tmp_path, {})
    results = evaluate(*demo, named("both", folder=task_folder), {"": STREAMING}, Choices(limit=1), work)
    assert [result["dataset"] for result in results] == ["json"] * len(results)
    assert shared(["a", "b"]) is None and shared(["a", "a"]) == "a"

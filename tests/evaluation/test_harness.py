"""Evaluations give the scores of stock lm-eval, and the same results after an interruption."""

from dataclasses import replace

import pytest
import torch
from evaluations import CHAT, DEFAULT, DEMO_TASKS, STREAMING, evaluate, named, scores, stock_scores, without_times

from wedlm.evaluation.harness import LIKELIHOOD, configure, shared
from wedlm.evaluation.lm import DecodingLM
from wedlm.evaluation.recipe import EvalSettings
from wedlm.evaluation.tasks import load_tasks
from wedlm.evaluation.work_file import WorkFile


def test_stock_lm_eval_gives_the_same_scores_and_texts(demo, task_folder, tmp_path):
    """Our criterion ends a row at the text where lm-eval's own ends the batch, so it takes fewer tokens."""
    for names, where, settings in (
        (["demo_counting", "demo_records"], DEMO_TASKS, replace(CHAT, limit=4)),
        (["choose", "first"], task_folder, EvalSettings(batch_size=4)),
    ):
        work = WorkFile(tmp_path / names[0], {})
        results = evaluate(*demo, named(*names, folder=where), {"": DEFAULT}, settings, work)
        expected, _ = stock_scores(names, where, settings)
        assert scores(results) == pytest.approx(expected)
    assert 0 < scores(results)["choose", "acc"]
    chat = EvalSettings(batch_size=4, apply_chat_template=True)
    work = WorkFile(tmp_path, {})
    (result,) = evaluate(*demo, named("first", folder=task_folder), {"": DEFAULT}, chat, work)
    _, expected = stock_scores(["first"], task_folder, chat)
    texts = [text for batch in work.results.values() for text in batch["answers"]]
    assert sorted(texts) == sorted(text for ((text,),) in expected)
    assert result["num_tokens"] < 5 * 5, "the whole answers have some ten tokens each"


@pytest.mark.full
def test_an_interrupted_run_goes_on_and_gives_the_same_table(demo, task_folder, tmp_path, monkeypatch):
    decodings = {"streaming": STREAMING, "verified": {"decoding": "verified"}}
    settings = EvalSettings(limit=3, batch_size=1, apply_chat_template=True, temperature=2.0, max_new_tokens=24)
    calls = []
    generate = DecodingLM._model_generate

    def run(work, stop_at=None):
        calls.clear()

        def counting(self, *args, **kwargs):
            calls.append(self.description)
            if len(calls) == stop_at:
                raise KeyboardInterrupt
            return generate(self, *args, **kwargs)

        monkeypatch.setattr(DecodingLM, "_model_generate", counting)
        tasks = [named("demo_stories"), named("choose", folder=task_folder)]
        return [result for task in tasks for result in evaluate(*demo, task, decodings, settings, work)]

    work, other_work = WorkFile(tmp_path / "whole", {}), WorkFile(tmp_path / "seed", {})
    whole = run(work)
    assert calls == ["streaming"] * 3 + ["verified"] * 3
    with pytest.raises(KeyboardInterrupt):
        run(WorkFile(tmp_path / "stopped", {}), stop_at=5)
    torch.manual_seed(99)
    again = run(WorkFile(tmp_path / "stopped", {}))
    assert calls == ["verified"] * 2, "what was answered is not asked again"
    assert without_times(again) == without_times(whole)
    assert [(result["task"], result["decoding"]) for result in whole] == [
        ("demo_stories", "streaming"), ("demo_stories", "verified"), ("choose", LIKELIHOOD),
    ]  # fmt: skip
    other = replace(settings, seed=5)
    evaluate(*demo, named("demo_stories"), {"streaming": STREAMING}, other, other_work)
    texts, drawn = (
        [batch["answers"] for batch in each.results.values() if "answers" in batch] for each in (work, other_work)
    )
    assert len(drawn) == 3 and not any(each in texts for each in drawn), "another seed draws otherwise"


def test_a_recipes_shots_hold_where_a_task_says_otherwise(task_folder):
    tasks = load_tasks({"first": 2, "choose": None}, [task_folder])
    configure(tasks, EvalSettings(num_fewshot=1))
    shots = {name: task.get_config("num_fewshot") for name, task in tasks.all.items()}
    assert shots == {"first": 2, "choose": 1}


def test_what_a_task_raises_is_a_sentence(demo, task_folder, tmp_path):
    (task_folder / "fails.py").write_text("def judged(document, results):\n    return document['nothing']\n")
    text = (task_folder / "first.yaml").read_text().replace("task: first", "task: fails")
    (task_folder / "fails.yaml").write_text(text + "process_results: !function fails.judged\n")
    tasks = named("fails", folder=task_folder)
    with pytest.raises(ValueError, match=r"Evaluating the tasks fails failed \(KeyError: 'nothing'\)"):
        evaluate(*demo, tasks, {"": STREAMING}, EvalSettings(limit=1), WorkFile(tmp_path, {}))


def test_a_group_adds_up_its_tasks_and_says_what_they_share(demo, task_folder, tmp_path):
    (task_folder / "second.yaml").write_text(
        (task_folder / "first.yaml").read_text().replace("task: first", "task: second")
    )
    (task_folder / "both.yaml").write_text("group: both\ntask: [choose, first, second]\n")
    work = WorkFile(tmp_path, {})
    results = evaluate(*demo, named("both", folder=task_folder), {"": STREAMING}, EvalSettings(limit=2), work)
    (group,), members = ([each for each in results if each["is_group"] == is_group] for is_group in (True, False))
    assert group["num_tokens"] == sum(each["num_tokens"] for each in members if each["num_tokens"]) > 0
    assert (group["num_examples"], group["dataset"], group["title"]) == (6, "json", "both")
    assert shared(["a", "b"]) is None and shared(["a", "a"]) == "a"

"""Evaluations give the scores of stock lm-eval, and the same results after an interruption."""

import pytest
import torch
from evaluations import CHAT, DEFAULT, DEMO_TASKS, STREAMING, evaluate, named, scores, stock_scores, without_times

from wedlm.evaluation.choices import Choices, EvaluationError
from wedlm.evaluation.harness import configure
from wedlm.evaluation.lm import DecodingLM
from wedlm.evaluation.results import LIKELIHOOD
from wedlm.evaluation.tasks import load_tasks
from wedlm.evaluation.work_file import WorkFile


def test_stock_lm_eval_gives_the_same_scores(demo, task_folder, tmp_path):
    for names, where, choices in (
        (["demo_counting", "demo_records"], DEMO_TASKS, CHAT),
        (["choose", "first"], task_folder, Choices(batch_size=4)),
    ):
        results = evaluate(*demo, named(*names, folder=where), {"": DEFAULT}, choices, WorkFile(tmp_path, {}))
        expected, _ = stock_scores(names, where, choices)
        assert scores(results) == pytest.approx(expected)
    assert 0 < scores(results)["choose", "acc"]


def test_batch_sizes_give_the_same_scores(demo, task_folder, tmp_path):
    tasks = named("demo_counting", "demo_word_problems"), named("choose", folder=task_folder)
    made = []
    for batch_size in (1, 4):
        choices = Choices(limit=5, batch_size=batch_size, apply_chat_template=True)
        work = WorkFile(tmp_path / str(batch_size), {})
        made.append([result for task in tasks for result in evaluate(*demo, task, {"": STREAMING}, choices, work)])
    assert scores(made[0]) == pytest.approx(scores(made[1]))


class Stop(KeyboardInterrupt):
    pass


@pytest.mark.few(1)
@pytest.mark.parametrize("temperature", [None, 2.0])
def test_an_interrupted_run_goes_on_and_gives_the_same_table(demo, task_folder, tmp_path, monkeypatch, temperature):
    decodings = {"streaming": STREAMING, "verified": {"decoding": "verified"}}
    choices = Choices(limit=3, batch_size=1, apply_chat_template=True, temperature=temperature)
    calls = []
    generate = DecodingLM._model_generate

    def run(work, stop_at=None):
        calls.clear()

        def counting(self, *args, **kwargs):
            calls.append(self.description)
            if len(calls) == stop_at:
                raise Stop
            return generate(self, *args, **kwargs)

        monkeypatch.setattr(DecodingLM, "_model_generate", counting)
        tasks = [named("demo_stories"), named("choose", folder=task_folder)]
        return [result for task in tasks for result in evaluate(*demo, task, decodings, choices, work)]

    whole = run(WorkFile(tmp_path / "whole", {}))
    assert calls == ["streaming"] * 3 + ["verified"] * 3
    with pytest.raises(Stop):
        run(WorkFile(tmp_path / "stopped", {}), stop_at=5)
    torch.manual_seed(99)
    again = run(WorkFile(tmp_path / "stopped", {}))
    assert calls == ["verified"] * 2, "what was answered is not asked again"
    assert without_times(again) == without_times(whole)
    assert [(result["task"], result["decoding"]) for result in whole] == [
        ("demo_stories", "streaming"), ("demo_stories", "verified"), ("choose", LIKELIHOOD),
    ]  # fmt: skip
    if temperature:
        other = Choices(limit=3, batch_size=1, apply_chat_template=True, temperature=temperature, seed=5)
        results = evaluate(*demo, named("demo_stories"), {"s": STREAMING}, other, WorkFile(tmp_path / "seed", {}))
        assert results[0]["num_tokens"] != whole[0]["num_tokens"], "another seed draws otherwise"


def test_a_recipes_shots_hold_where_a_task_says_otherwise(task_folder):
    tasks = load_tasks({"first": 2, "choose": None}, [task_folder])
    configure(tasks, Choices(num_fewshot=1))
    shots = {name: task.get_config("num_fewshot") for name, task in tasks.all.items()}
    assert shots == {"first": 2, "choose": 1}


def test_what_a_task_raises_is_a_sentence(demo, task_folder, tmp_path):
    (task_folder / "fails.py").write_text(
        "def judged(document, results):\n    return {'right': document['nothing']}\n"
    )
    text = (task_folder / "first.yaml").read_text().replace("task: first", "task: fails")
    (task_folder / "fails.yaml").write_text(text + "process_results: !function fails.judged\n")
    tasks = named("fails", folder=task_folder)
    with pytest.raises(EvaluationError, match=r"Evaluating the tasks fails failed \(KeyError: 'nothing'\)"):
        evaluate(*demo, tasks, {"": STREAMING}, Choices(limit=1), WorkFile(tmp_path, {}))

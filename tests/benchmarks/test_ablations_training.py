"""The ablations of training go on where they stopped, judge answers, and compare models question by question."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import REPOSITORY
from transformers import AutoTokenizer

from examples.demo.model import MuonAndAdamW
from examples.demo.tasks import held_out_examples
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation import resampling

RESULTS = REPOSITORY / "benchmarks" / "results"
EVIDENCE = REPOSITORY / "docs" / "evidence"

TINY = {"base-steps": 3, "steps": 3, "rows-per-step": 2, "hidden-size": 96, "num-layers": 1, "num-questions": 2}


@pytest.fixture
def ablations(load_benchmark):
    return load_benchmark("ablations_training")


@pytest.fixture
def run(ablations, monkeypatch, tmp_path):
    monkeypatch.setattr(ablations, "MAX_NEW_TOKENS", 7)
    monkeypatch.setattr(resampling, "NUM_RESAMPLES", 100)

    def run(ablation, work="work"):
        out, picture = tmp_path / f"{ablation}.json", tmp_path / f"{ablation}.png"
        options = {**TINY, "save-steps": 1, "work": tmp_path / work, "out": out, "plot": picture}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        monkeypatch.setattr(sys, "argv", [ablations.__file__, ablation, *words])
        ablations.main()
        assert picture.read_bytes().startswith(b"\x89PNG")
        return json.loads(out.read_text())

    return run


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_results(ablations, run, monkeypatch, capsys):
    whole = run("inside-block")
    assert ablations.table(whole["results"]) in capsys.readouterr().out
    assert list(whole["results"]["models"]) == ["base", "causal blocks of 32", "bidirectional blocks of 32"]

    step, answers_of, num_steps, num_answered = MuonAndAdamW.step, ablations.answers_of, [], []

    def stopping_step(self, closure=None):
        num_steps.append(1)
        if len(num_steps) in (3, 6):  # of 9: in the base, and in the first variant
            raise KeyboardInterrupt
        step(self, closure)

    def stopping_answers(*arguments):
        num_answered.append(1)
        if len(num_answered) == 4:
            raise KeyboardInterrupt
        return answers_of(*arguments)

    monkeypatch.setattr(MuonAndAdamW, "step", stopping_step)
    monkeypatch.setattr(ablations, "answers_of", stopping_answers)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run("inside-block", "stopped")
    resumed = run("inside-block", "stopped")
    assert resumed["results"]["rows"] == whole["results"]["rows"]
    models = [report["results"]["models"] for report in (resumed, whole)]
    assert [[log["losses"] for log in logs.values()] for logs in models].count(
        [log["losses"] for log in models[0].values()]
    ) == 2
    assert models[0]["base"]["first_step"] == 2 and models[0]["causal blocks of 32"]["first_step"] == 1
    # What there is is kept, and the other ablation finds it.
    num_steps_before = len(num_steps)
    other = run("block-size", "stopped")
    assert len(num_steps) - num_steps_before == 2 * TINY["steps"]
    assert other["results"]["models"]["causal blocks of 32"] == models[0]["causal blocks of 32"]
    # Blocks and attention make a difference in training.
    losses = {
        name: [entry.get("mlm_loss") for entry in log["losses"]]
        for name, log in (models[0] | other["results"]["models"]).items()
    }
    assert losses.pop("base") == [None] * TINY["base-steps"]
    assert len(losses) == len({tuple(values) for values in losses.values()}) == 4


@pytest.mark.full
def test_differences_are_taken_question_by_question(ablations, monkeypatch):
    def answers(functions, equations):
        kinds = {"functions": functions, "equations": equations}
        return {kind: [ablations.Answer("", right) for right in rights] for kind, rights in kinds.items()}

    base, causal, bidirectional = "base", "causal blocks of 32", "bidirectional blocks of 32"
    way, paper = "window of its blocks", "window of 6"
    half = [True, False]
    measured = ablations.summaries(
        {
            (base, "token by token"): answers(30 * half, 60 * [True]),
            (causal, way): answers(30 * half, 60 * [False]),
            (bidirectional, way): answers(30 * half[::-1], 60 * [False]),
            (causal, paper): answers(60 * [True], 60 * [True]),
            (bidirectional, paper): answers(15 * [True, True, True, False], 60 * [True]),
        }
    )
    of = {(numbers["model"], numbers["decoding"], numbers["kind"]): numbers for numbers in measured}
    assert len(of) == 15
    assert of[base, "token by token", "both"] == {
        "model": base,
        "decoding": "token by token",
        "kind": "both",
        "accuracy": 0.75,
    }

    def widths(numbers, over):
        low, high = numbers[f"over_{over}_interval"]
        assert low <= numbers[f"over_{over}"] <= high
        return high - low

    same, turned = of[causal, way, "functions"], of[bidirectional, way, "functions"]
    assert same["over_base"] == turned["over_base"] == turned["over_reference"] == 0
    assert widths(same, "base") < 0.2 < 0.4 < widths(turned, "base")  # question by question
    assert widths(turned, "reference") == widths(turned, "base")
    assert of[causal, way, "equations"]["over_base"] == -1
    assert of[causal, paper, "both"]["over_base"] == 0.25
    assert of[bidirectional, paper, "both"]["over_base"] == 0.125
    assert of[bidirectional, paper, "both"]["over_reference"] == -0.125
    assert of[bidirectional, paper, "both"]["over_reference_interval"][1] < 0
    table = ablations.table({"rows": measured})
    assert f"| {base} | token by token | 50.0% | 100.0% | 75.0% |  |  |" in table
    low, high = (100 * bound for bound in of[causal, paper, "both"]["over_base_interval"])
    assert f"| {causal} | {paper} | 100.0% | 100.0% | 100.0% | +25.0 ({low:+.1f} to {high:+.1f}) |  |" in table


@pytest.mark.full
def test_answers_are_judged_up_to_the_end_token(ablations):
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    questions = held_out_examples("counting", 2)
    end = tokenizer.eos_token_id
    first = tokenizer(questions[0].answer)["input_ids"]
    written = torch.tensor([[*first, end, 7, 8], [7] * (len(first) + 3)])
    model = SimpleNamespace(device="cpu")
    right, wrong = ablations.answers_of(model, tokenizer, questions, lambda inputs: written)
    assert right == (questions[0].answer, True)
    assert not wrong.is_right


@pytest.mark.full
@pytest.mark.parametrize("ablation", ["block-size", "inside-block"])
def test_the_recorded_run_is_whole_and_its_plot_is_drawn_from_it(ablations, ablation, tmp_path):
    name = ablation.replace("-", "_")
    report = json.loads((RESULTS / f"ablation_{name}.json").read_text())
    assert not report["commit"].endswith("+changes")
    assert report["command"] == f"python benchmarks/ablations_training.py {ablation}"
    assert report["num_questions"] >= 200
    models = [variant.name for variant in ablations.VARIANTS[ablation]]
    assert list(report["results"]["models"]) == ["base", *models]
    assert len(report["results"]["rows"]) == 3 * (1 + 3 * len(models))
    ablations.plot(report, tmp_path / "plot.png")
    assert (EVIDENCE / f"{name}.png").exists()


@pytest.mark.full
def test_both_recorded_ablations_have_the_same_base_and_blocks_of_32():
    reports = [json.loads((RESULTS / f"ablation_{name}.json").read_text()) for name in ("block_size", "inside_block")]
    shared = [
        [numbers for numbers in report["results"]["rows"] if numbers["model"] in ("base", "causal blocks of 32")]
        for report in reports
    ]
    assert len(shared[0]) == 3 * 4
    assert shared[0] == shared[1]

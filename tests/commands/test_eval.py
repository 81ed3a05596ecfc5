"""`wedlm eval`: its file, its table, and what it refuses."""

import json
from unittest.mock import Mock

import pytest
from evaluations import DEMO_TASKS, STREAMING, without_times
from helpers import load
from transformers import AutoTokenizer
from typer.testing import CliRunner

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.checkpoints.errors import CheckpointError
from wedlm.commands import cli
from wedlm.evaluation import provenance


def run(*arguments):
    return CliRunner().invoke(cli.app, ["eval", *map(str, arguments)])


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(
        f"tasks: {{demo_counting: 0}}\ninclude_path: {DEMO_TASKS}\nsettings: {{apply_chat_template: true, limit: 2}}\n"
    )
    asked = ["--recipe", "recipe.yaml", "--limit", 3, "--max-new-tokens", 12]
    several = ["--decoding", "streaming", "--decoding", "autoregressive", "--entropy-threshold", "0.1",
               "--entropy-threshold", "none", "--batch-size", 3]  # fmt: skip
    first = run(*asked, *several)
    assert first.exit_code == 0, first.output
    assert {path.name for path in tmp_path.iterdir()} == {"eval.json", "recipe.yaml"}, "the work folder is gone"
    report = json.loads((tmp_path / "eval.json").read_text())
    own = json.loads((DEMO_FOLDER / "generation_config.json").read_text(encoding="utf-8"))
    assert report["generation_config"]["entropy_threshold"] == own["entropy_threshold"]
    assert len(report["files_sha256"]) == 64
    assert report["versions"]["lm_eval"] and report["model"] == "wedlm-demo" and report["device"]
    assert report["settings"]["limit"] == 3 and report["settings"]["apply_chat_template"] is True
    assert report["product"] and report["settings"]["product"] and report["settings"]["dtype"]
    labels = ["streaming, threshold 0.1", "streaming, threshold none", "autoregressive"]
    assert [result["decoding"] for result in report["results"]] == labels
    of_checkpoint = {name: own[name] for name in STREAMING} | {"decoding": "streaming"}
    assert report["results"][0]["arguments"] == of_checkpoint | {"entropy_threshold": 0.1}
    assert all(label in first.stdout for label in labels) and "tokens per forward" in first.stdout
    assert all(label in first.stderr for label in labels), "a bar for each"
    named = run(*asked, *several, "--out", "eval.json")
    assert named.exit_code == 2 and "--out eval.json exists" in named.output
    again = run("--recipe", "recipe.yaml", "--limit", 1)
    assert "Written to eval-2.json." in again.stderr and (tmp_path / "eval-2.json").exists()
    assert run(*asked, *several, "--overwrite").exit_code == 0
    repeated = json.loads((tmp_path / "eval.json").read_text())
    assert without_times(repeated["results"]) == without_times(report["results"])


def test_work_of_other_conditions_is_left_alone(tmp_path, monkeypatch):
    """Otherwise its speeds would pass for those of this device, these threads and this code."""
    monkeypatch.chdir(tmp_path)
    command = (
        "--include-path",
        DEMO_TASKS,
        "--tasks",
        "demo_counting",
        "--limit",
        1,
        "--max-new-tokens",
        4,
        "--out",
        "eval.json",
    )
    monkeypatch.setattr(provenance, "write_report", Mock(side_effect=OSError("The disk is full.")))
    assert run(DEMO_FOLDER, *command).exit_code != 0
    real = provenance.conditions
    for changed, goes_on in (({}, True), ({"threads": 99}, False), ({"commit": "other"}, False)):
        monkeypatch.setattr(provenance, "conditions", lambda *args, now=changed: {**real(*args), **now})
        assert ("Going on from" in run(DEMO_FOLDER, *command).stderr) == goes_on, changed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tasks", "demo_counting", "--decoding", "fast"], "decoding='fast' is unknown; choose one of 'streaming'"),
        (["--tasks", "demo_counting", "--limit", "0"], "limit=0 is too small or too large; give 1 or more."),
        (["--tasks", "demo_counting", "--metadata", "[1]"], "--metadata [1] is not JSON (no object); write it as"),
        (["--tasks", "demo_counting,demo"], "name each task once"),
    ],
)
def test_bad_arguments_are_one_sentence(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = run("--include-path", DEMO_TASKS, "--run-code", "--unsafe-run-code", *arguments)
    assert result.exit_code == 2 and words in result.stderr, result.output
    assert result.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


def test_root_without_a_boundary_runs_no_code_unless_a_flag_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wedlm.evaluation.sandbox.boundary", lambda: ([], {}))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("wedlm.checkpoints.load.load_checkpoint", Mock(side_effect=CheckpointError("Seen.")))
    command = ("--include-path", DEMO_TASKS, "--tasks", "demo_counting", "--run-code")
    result = run(*command)
    assert result.exit_code == 2 and result.stderr.startswith("--run-code would run the model's code with all rights")
    assert run(*command, "--unsafe-run-code").stderr == (
        "The model's code runs without bubblewrap, with all rights of root: only a guard inside its process keeps it "
        "from files and the network.\nSeen.\n"
    )
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "with all rights of you: only a guard" in run(*command).stderr
    monkeypatch.setattr("wedlm.evaluation.sandbox.boundary", lambda: (["bwrap"], {}))
    assert run(*command).stderr == "Seen.\n"


def test_a_model_without_a_chat_template(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load(DEMO_FOLDER).save_pretrained("base")
    tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)
    tokenizer.chat_template = None
    tokenizer.save_pretrained("base")
    result = run("base", "--include-path", DEMO_TASKS, "--tasks", "demo_counting", "--apply-chat-template")
    assert result.exit_code == 2 and "base has no chat template; leave out --apply-chat-template." in result.stderr

"""The scripts of examples/ run, on the demo checkpoint."""

import runpy
import sys

import pytest
from helpers import CHECKPOINTS, REPOSITORY
from serving_client import started_server

from wedlm.checkpoints.demo_folder import DEMO_FOLDER


@pytest.fixture
def run(monkeypatch, capsys):
    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(REPOSITORY / "examples" / f"{name}.py"))
        return capsys.readouterr().out

    return run


def test_generate(run):
    answers = [line.partition(": ")[2] for line in run("generate", DEMO_FOLDER).splitlines()]
    assert answers[:2] == answers[2:] and answers[0] == "10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60."


@pytest.mark.full
def test_adapt(run, tmp_path):
    assert "The text is the same." in run("adapt", DEMO_FOLDER, tmp_path / "out", 1)
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["adapt", CHECKPOINTS / "gone", "out", 1], "golden/checkpoints/gone"),
        (["adapt", DEMO_FOLDER], r"python examples/adapt.py \[MODEL OUT STEPS\]"),
        (["trl_sft"], r"A package is missing .*; run: pip install trl"),
    ],
)
def test_a_script_refuses_in_a_sentence(run, monkeypatch, words, sentence):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SystemExit, match=sentence):
        run(*words)


@pytest.mark.full
def test_lora_trainer(run, tmp_path):
    run("lora_trainer", DEMO_FOLDER, tmp_path / "out", 1)
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()


@pytest.mark.ecosystem
def test_trl_sft(run, tmp_path):
    run("trl_sft", DEMO_FOLDER, tmp_path / "out", 1)
    assert (tmp_path / "out" / "modeling_wedlm.py").exists(), "the code goes with the weights"


@pytest.mark.full
def test_server_client(run):
    with started_server(DEMO_FOLDER) as (_, port):
        whole, streamed = run("server_client", f"http://127.0.0.1:{port}/v1").splitlines()
    assert whole == streamed.replace("|", "") == "10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60."

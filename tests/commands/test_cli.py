"""The `wedlm` command: help, errors, exit codes and the entry point."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from unittest.mock import Mock

import pytest
from command_line import PROMPT, SHORT, run
from helpers import CHECKPOINTS, REPOSITORY, run_python
from transformers import TrainingArguments
from typer.main import get_command

from wedlm.commands import cli


def test_help_is_fast_and_shows_every_command(tmp_path):
    """Neither torch nor transformers is imported."""
    commands = [[], ["--version"], *([command.callback.__name__] for command in cli.app.registered_commands)]
    code = (
        "import sys\nfrom wedlm.commands.cli import app\n"
        f"for arguments in {commands}:\n"
        "    try:\n        app([*arguments, '--help'])\n    except SystemExit as end:\n        assert end.code == 0\n"
        "print({'torch', 'transformers'} & sys.modules.keys())"
    )
    out = run_python(code, tmp_path)
    assert "convert" in out and out.strip().endswith("set()")


@pytest.mark.parametrize("command", [command.callback.__name__ for command in cli.app.registered_commands])
def test_every_command_has_an_example_that_parses(command):
    shown = run(command, "--help", env={"COLUMNS": "200"}).stdout
    assert "<bool>" not in shown, "a flag takes no value"
    (example,) = re.findall(rf"Example: wedlm {command} (.*)", " ".join(shown.split()))
    with get_command(cli.app).commands[command].make_context(command, shlex.split(example)):
        pass  # a command that does not parse raises an error


def test_the_help_of_train_lists_what_a_run_takes():
    from wedlm import WeDLMTrainingArguments
    from wedlm.training.run_arguments import RunArguments

    shown = run("train", "--help", env={"COLUMNS": "200"}).stdout
    own = {item.name for kind in (RunArguments, WeDLMTrainingArguments) for item in fields(kind) if item.init}
    own -= {item.name for item in fields(TrainingArguments)} - {"attn_implementation"}
    assert own <= set(re.findall(r"--(\w+)", shown)) and "TrainingArguments" in shown


def test_convert_there_and_back(tmp_path):
    there = run("convert", CHECKPOINTS / "q3", tmp_path / "wedlm")
    assert there.stdout.endswith(
        f"Written to {tmp_path / 'wedlm'} (MASK is token 159).\n"
        f'Next: wedlm generate {tmp_path / "wedlm"} "Why is the sky blue?"\n'
    )
    back = run("convert", "--to-autoregressive", tmp_path / "wedlm", tmp_path / "back")
    assert back.exit_code == 0 and "Note: MASK, token 159, stays" in back.stdout
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "qwen3"
    assert run("convert", CHECKPOINTS / "q3", tmp_path / "wedlm", "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError(13, "denied", "x"), "A file cannot be read or written ([Errno 13] denied: 'x'); allow it, "),
        (MemoryError("9 bytes"), "There is not enough memory (9 bytes); ask for fewer tokens, or choose another "),
        (RuntimeError("can't allocate memory"), "There is not enough memory (can't allocate memory); ask for "),
        (ImportError("No x"), "A package is missing (No x); install wedlm with its extra 'train', in a clone of it "),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_machine_refuses_is_one_sentence(monkeypatch, error, sentence):
    monkeypatch.setattr("wedlm.training.merge.merge_adapter", Mock(side_effect=error))
    result = run("merge", "adapter", "out")
    assert result.exit_code == 2 and result.stderr.startswith(sentence) and result.stderr.count("\n") == 1


def test_an_error_of_the_program_is_shown_whole(monkeypatch):
    monkeypatch.setattr("wedlm.training.merge.merge_adapter", Mock(side_effect=RuntimeError("shape")))
    assert isinstance(run("merge", "adapter", "out").exception, RuntimeError)
    for arguments in (["generate", "nothing", PROMPT], ["info", "nothing"]):
        assert isinstance(run(*arguments).exception, SystemExit)
        assert isinstance(run(*arguments, "--debug").exception, ValueError)


def test_the_command_is_installed():
    assert '"wedlm = wedlm.commands.cli:app"' in (REPOSITORY / "setup.py").read_text()
    result = subprocess.run([sys.executable, "-m", "wedlm.commands.cli", "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and "convert" in result.stdout


@pytest.mark.slow
def test_a_terminal_that_knows_fewer_letters(checkpoint):
    result = subprocess.run(
        [sys.executable, "-m", "wedlm", "trace", checkpoint, PROMPT, *SHORT],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True,
    )  # fmt: skip
    assert result.returncode == 0 and b" ? " in result.stdout


@pytest.mark.slow
def test_a_pipe_that_nobody_reads_is_no_error():
    result = subprocess.run(
        f"{sys.executable} -m wedlm info | true", shell=True, capture_output=True, text=True, executable="/bin/bash"
    )
    assert result.stderr == ""


def test_a_progress_bar_adds_few_lines_to_a_file():
    """Ten seconds of work, by a clock that the test moves."""
    script = """
from typer.testing import CliRunner
from wedlm.commands.cli import app
CliRunner().invoke(app, ["info", "nothing"])
from tqdm.auto import tqdm
bar = tqdm(total=100)
bar._time = lambda: bar.start_t + bar.n / 10
for _ in range(100):
    bar.update()
bar.close()
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TQDM")}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert 1 <= run.stderr.count("it/s") <= 3

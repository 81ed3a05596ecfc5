"""The `wedlm` command: help, errors, exit codes and the entry point."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from command_line import PROMPT, SHORT, run
from helpers import CHECKPOINTS, REPOSITORY, run_python
from transformers import TrainingArguments
from typer.main import get_command

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.commands import cli

QUESTION = "Solve 3x + 7 = 22 for x."
EVAL = f"--recipe {REPOSITORY / 'examples/demo/eval.yaml'} --run-code --unsafe-run-code --limit 1"
ADAPT = "--num-prompts 8 --num-held-out 1 --steps 1 --rank 2 --max-new-tokens 4"


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
    assert run("convert", CHECKPOINTS / "q3", tmp_path / "wedlm").exit_code == 2
    assert run("convert", CHECKPOINTS / "q3", tmp_path / "wedlm", "--overwrite").exit_code == 0
    assert run("convert", "a", "b", "--unknown").exit_code == 2


def test_a_source_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(source, *arguments, **options):
        raise PermissionError(13, "Permission denied", source)

    monkeypatch.setattr("wedlm.convert_to_wedlm", refuse, raising=False)
    result = run("convert", CHECKPOINTS / "q3", tmp_path / "out")
    assert result.exit_code == 2 and "read or written ([Errno 13] Permission denied" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_command_is_installed():
    assert '"wedlm = wedlm.commands.cli:app"' in (REPOSITORY / "setup.py").read_text()
    result = subprocess.run([sys.executable, "-m", "wedlm.commands.cli", "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and "convert" in result.stdout


@pytest.mark.slow
def test_every_command_through_the_installed_entry_point(tmp_path):
    wedlm = Path(sys.executable).with_name("wedlm")
    chats = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}] * 4
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    config = f"model: {DEMO_FOLDER}\ntrain_data: chats.jsonl\noutput_dir: lora\nlora_r: 4\nmax_steps: 2\n"
    (tmp_path / "lora.yaml").write_text(config)
    called = set()
    for words, given, expected in [
        (["generate", QUESTION], "", "Answer: x = 5\n"),
        (["chat"], f"{QUESTION}\n/stats\n", "tokens per forward"),
        (["compare", QUESTION], "", "same"),
        (["trace", QUESTION], "", "Answer"),
        (["info"], "", "wedlm-demo"),
        (["convert", CHECKPOINTS / "q3", "converted"], "", "converted (MASK is token 159)."),
        (["train", "lora.yaml"], "", ""),
        (["merge", "lora", "merged"], "", "merged."),
        (["eval", "merged", *EVAL.split()], "", "Written to eval.json."),
        (["tune", "merged", "--data", "chats.jsonl", "--max-new-tokens", "4"], "", "Nothing is written into "),
        (["adapt", "merged", "drafts", *ADAPT.split()], "", "Written to "),
        (["export", "merged", "published", "--license", "mit"], "", "published."),
    ]:
        called.add(words[0])
        result = subprocess.run([wedlm, *words], cwd=tmp_path, input=given, capture_output=True, text=True)
        assert result.returncode == 0, (words, result.stderr)
        assert expected in result.stdout + result.stderr, (words, result.stdout, result.stderr)
    called.add("serve")
    server = subprocess.Popen([wedlm, "serve", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert "wedlm-demo answers at http://127.0.0.1:" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
    finally:
        server.kill()
    assert called == {command.callback.__name__ for command in cli.app.registered_commands}


def test_too_little_memory_is_one_sentence(monkeypatch):
    def load_checkpoint(*arguments, **options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr("wedlm.commands.answering.load_checkpoint", load_checkpoint)
    result = run("generate", "x")
    assert result.exit_code == 2 and result.stderr.startswith("There is not enough memory (DefaultCPUAllocator: ")
    assert result.stderr.endswith("; ask for fewer tokens, or choose another --dtype or --device.\n")


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


def test_debug_shows_where_an_error_comes_from():
    for arguments in (["generate", "nothing", PROMPT], ["info", "nothing"]):
        assert isinstance(run(*arguments).exception, SystemExit)
        assert isinstance(run(*arguments, "--debug").exception, ValueError)

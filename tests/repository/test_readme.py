"""The README does what it says: its code runs, in its order, and its numbers are measured ones."""

import ast
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO

import pytest
from helpers import REPOSITORY
from readme_blocks import BLOCKS, BY_HAND, ELSEWHERE, QUICKSTART, README, SERVER, parse
from transformers import logging
from typer.testing import CliRunner

from wedlm.commands.cli import app
from wedlm.generation.parameters import DEFAULTS, READS

FIRST_STEPS = REPOSITORY / "benchmarks" / "results" / "first_steps.json"


@pytest.fixture
def newcomers_folder(tmp_path, monkeypatch):
    """The repository's folders that the README names, and room for what the commands write."""
    for name in ("hub_card", "training"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    monkeypatch.chdir(tmp_path)
    before = logging.get_verbosity()
    yield tmp_path
    logging.set_verbosity(before)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.code.splitlines()[0])
def test_every_block_compiles(block):
    if block.language == "python":
        ast.parse(block.code)
        return
    for words in block.commands():
        if words[0] == ".":
            assert words[1:] == [".venv/bin/activate"]
        elif words[0] == "pip":
            (address,) = re.findall(r'^ADDRESS = "(.*)"', (REPOSITORY / "setup.py").read_text(encoding="utf-8"), re.M)
            extras = "[train,serve,eval]"
            wanted = [f"wedlm{extras} @ git+{address}"] if address else ["-e", f".{extras}"]  # in a clone
            assert words[1:] == ["install", *wanted]
        elif words[0] == "make":
            assert f"\n{words[1]}:" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")
        else:
            assert words[0] == "wedlm"
            parse(words)


@pytest.mark.full
def test_the_code_runs_in_its_order(newcomers_folder):
    """All of it in one process, and the server in another."""
    namespace, server, answers = {}, None, []
    try:
        for block in BLOCKS:
            if block.note in {BY_HAND, *ELSEWHERE}:
                continue
            if block.note == SERVER:
                ((_, *arguments),) = block.commands()
                server = subprocess.Popen(
                    [sys.executable, "-m", "wedlm", *arguments, "--port", "0"],
                    stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
                )  # fmt: skip
                assert re.search(r"http://127\.0\.0\.1:\d+/v1", server.stdout.readline())
            elif block.language == "python":
                with redirect_stdout(StringIO()) as output:
                    exec(compile(block.code, "README.md", "exec"), namespace)
                shown = re.findall(r"^print\(.*\)  # prints: (.*)$", block.code, re.MULTILINE)
                assert shown == output.getvalue().splitlines()[-len(shown) :][: len(shown)], block.code
                answers += shown
            else:
                for _, *arguments in block.commands():
                    result = CliRunner().invoke(app, arguments)
                    assert result.exit_code == 0, (arguments, result.output)
    finally:
        if server is not None:
            server.kill()
            server.wait()
    assert answers == ["It is Lima."], "what the Trainer has taught"


def test_the_numbers_are_measured(monkeypatch):
    """Tables, statements about them and the first commands' times come from files; README claims nothing else."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    page = import_module("evidence_real")
    records = page.read_records()
    times = import_module("first_steps").sentence(json.loads(FIRST_STEPS.read_text(encoding="utf-8")))
    assert times in " ".join(QUICKSTART.split())
    assert page.overview(records) in README
    prose = re.sub(r"```.*?```", "", README.replace(page.overview(records), ""), flags=re.DOTALL)
    prose = " ".join(prose.split())
    evidence = import_module("evidence")
    task = import_module("task_comparison").headline(
        json.loads(FIRST_STEPS.with_name("task_comparison.json").read_text("utf-8"))
    )
    demo, gpu = evidence.demo_headline(), evidence.gpu_headline()
    for told in (page.headline(records), page.compared(records), gpu, demo, task):
        assert told in prose
        prose = prose.replace(told, "")
    claims = re.findall(
        r"\d[\d.,]* ?(?:%|×|times\b|x\b|ms\b|s\b|seconds|minutes|hours|[MG]B|tokens|parameters)", prose
    )
    assert claims == []


def test_the_papers_decoding_is_the_default_of_generate():
    page = (REPOSITORY / "docs" / "generate.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| the paper's decoding |"))
    defaults = {name: str(DEFAULTS[name]) for name in ("decoding", *READS[DEFAULTS["decoding"]])}
    assert dict(re.findall(r'`(\w+)="?(.*?)"?`', row)) == defaults

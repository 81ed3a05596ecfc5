"""The runner of mutants, on a made-up module and test file."""

import json
from collections import Counter

import mutants
import pytest
from helpers import REPOSITORY, run_python
from import_graph import source_files
from mutations import mutations

MODULE = """
def count(most):
    number = 0
    while number < most:
        number += 1
    return number
"""
TESTS = """
from made_up import count

def test_counts():
    assert count(3) == 3

def test_the_file_is_as_it_was():
    assert "number < most" in open("made_up.py").read()
"""
JUDGE = """
import json, sys
from pathlib import Path
sys.path[:0] = [TESTS, "."]
import pytest  # as the runner does, before it forks
from mutants import Replaced, run_tests
file = Path("made_up.py").absolute()
for source, limit in json.loads(Path("sources.json").read_text()):
    replaced = Replaced("made_up", file, source) if source else None
    print(*run_tests([file.with_name("test_made_up.py")], [], limit, replaced), sep="; ")
"""


@pytest.mark.full
def test_verdicts(tmp_path):
    noticed, alive = MODULE.replace("<", "<="), MODULE.replace("<", "!=")
    endless, broken, crash = MODULE.replace("+= 1", "-= 1"), "import nothing_such", "import os; os.abort()"
    (tmp_path / "made_up.py").write_text(MODULE)
    (tmp_path / "test_made_up.py").write_text(TESTS)
    sources = [(None, 30), (noticed, 30), (alive, 30), (endless, 2), (broken, 30), (crash, 30)]
    (tmp_path / "sources.json").write_text(json.dumps(sources))
    lines = run_python(JUDGE.replace("TESTS", repr(str(REPOSITORY / "tests"))), tmp_path).splitlines()
    told = [(outcome, test) for outcome, _, test in (line.split("; ") for line in lines)]
    assert told == [
        ("alive", ""),
        ("noticed", "test_made_up.py::test_counts"),
        ("alive", ""),
        ("timeout", ""),
        ("noticed", "test_made_up.py"),
        ("noticed", "pytest ended with exit code -6"),
    ]


def test_the_tests_named_after_a_file_judge_first():
    room = REPOSITORY / "tests" / "generation"
    own, others = mutants.tests_for(REPOSITORY / "generation" / "verified.py")
    assert own == [room / "test_verified.py"]
    assert room / "test_peft.py" in others and own[0] not in others
    (others,) = mutants.tests_for(REPOSITORY / "generation" / "no_such_file.py")
    assert own[0] in others


def test_files_are_known_by_their_module():
    assert {path: mutants.module_of(path) for path in source_files().values() if path.stem != "__init__"} == {
        path: module for module, path in source_files().items() if path.stem != "__init__"
    }


def test_what_is_drawn_from():
    assert mutants.files_of(["generation/window.py"]) == [REPOSITORY / "generation" / "window.py"]
    assert REPOSITORY / "training" / "loss_weights.py" in mutants.files_of(["generation", "training"])
    with pytest.raises(SystemExit, match="nothing.py is no file or folder of the repository; give one such as"):
        mutants.files_of(["nothing.py"])


def test_a_survivor_is_told_with_its_line(monkeypatch, tmp_path):
    monkeypatch.setattr(mutants, "REPOSITORY", tmp_path)
    file = tmp_path / "made_up.py"
    file.write_text(MODULE)
    mutation = next(found for found in mutations(MODULE) if "<=" in found.after)
    assert mutants.told(file, mutation) == "made_up.py:4\n  - while number < most:\n  + while number <= most:"


def test_the_table_adds_up_files_and_rooms():
    counts = {
        "a/b.py": Counter(noticed=3, alive=1),
        "a/c.py": Counter(timeout=1, noticed=1),
        "d/e.py": Counter(alive=2),
    }
    assert mutants.table(counts).splitlines()[2:] == [
        "| a/ | 6 | 5 | 1 | 1 | 83% |",
        "| a/b.py | 4 | 3 | 0 | 1 | 75% |",
        "| a/c.py | 2 | 2 | 1 | 0 | 100% |",
        "| d/ | 2 | 0 | 0 | 2 | 0% |",
        "| d/e.py | 2 | 0 | 0 | 2 | 0% |",
        "| all | 8 | 5 | 1 | 3 | 62% |",
    ]

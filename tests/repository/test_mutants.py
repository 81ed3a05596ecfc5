"""The runner of mutants, on a made-up module and test file, and the mutations that it draws."""

import json

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
RUNNER = """
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


@pytest.mark.slow
def test_verdicts(tmp_path):
    sources = [
        (None, 30),
        (MODULE.replace("<", "<="), 30),
        (MODULE.replace("<", "!="), 30),
        (MODULE.replace("+= 1", "-= 1"), 2),
        ("import os; os.abort()", 30),
    ]
    (tmp_path / "made_up.py").write_text(MODULE)
    (tmp_path / "test_made_up.py").write_text(TESTS)
    (tmp_path / "sources.json").write_text(json.dumps(sources))
    lines = run_python(RUNNER.replace("TESTS", repr(str(REPOSITORY / "tests"))), tmp_path).splitlines()
    assert [(outcome, test) for outcome, _, test in (line.split("; ") for line in lines)] == [
        ("alive", ""),
        ("noticed", "test_made_up.py::test_counts"),
        ("alive", ""),
        ("timeout", ""),
        ("noticed", "pytest ended with exit code -6"),
    ]


def test_the_tests_named_after_a_file_run_first():
    own, others = mutants.tests_for(REPOSITORY / "generation" / "verified.py")
    assert own == [REPOSITORY / "tests" / "generation" / "test_verified.py"] and own[0] not in others
    files = {path: module for module, path in source_files().items() if path.stem != "__init__"}
    assert {path: mutants.module_of(path) for path in files} == files


@pytest.mark.parametrize(
    "source, expected",
    [
        ("a = b < c == d", ["a = b < c != d", "a = b <= c == d"]),
        ("a = b and c or d", ["a = (b and c) and d", "a = b or c or d"]),
        ("a = not b", ["a = b"]),
        ("a = (b - 1) % c", ["a = (b - 1) * c", "a = (b + 1) % c", "a = (b - 2) % c"]),
        ("a += b", ["a -= b", "pass"]),
        ("a = min(b.any(), c)", ["a = max(b.any(), c)", "a = min(b.all(), c)"]),
        ("a = b[c:d, :e]", ["a = b[:d, :e]", "a = b[c:, :e]", "a = b[c:d, :]"]),
        ("a = f(b, c=d, strict=True)", ["a = f(b, strict=True)"]),
        ("if a: raise b", ["if a: pass", "if not a: raise b"]),
        ('@c(d=1)\ndef f(e: int = None) -> g[1]:\n    """A text."""\n    return f"{e + 1}"', []),
    ],
)
def test_each_kind_of_change(source, expected):
    found = list(mutations(source))
    assert sorted(mutation.source for mutation in found) == sorted(expected)

"""The sandbox runs code, returns its values, and refuses what could do harm."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from wedlm.evaluation.sandbox import MAX_OUTPUT_BYTES, run_python

DOUBLE = "def double(n):\n    return 2 * n\n"


def test_the_values_come_back_as_they_are():
    code = "def same(x):\n    print('seen', x)\n    return x\n"
    values = [3, -1.5, True, None, "a\n'ü'", [1, [2, (3,)]], {"a": {1, 2}}, b"\x00"]
    result = run_python(code, [f"same({value!r})" for value in values])
    assert result.outcome == "finished"
    assert repr(result.values) == repr(values)  # 1 and True differ
    assert result.output.startswith("seen 3\nseen -1.5\n")


def test_the_standard_library_is_there_and_packages_are_not():
    assert run_python("import math, re, collections, itertools", ["math.gcd(12, 18)"]).values == [6]
    assert "No module named 'torch'" in run_python("import torch").output


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def double(n)", "SyntaxError"),
        ("x = 'a' * 10**12", "MemoryError"),
        ("x = []\nwhile True:\n    x.append('a' * 10**6 + str(len(x)))", "MemoryError"),
        ("def f(n):\n    return f(n)\nf(1)", "RecursionError"),
        ("import os\nos.fork()", "os.fork is refused here"),
        ("import os\nos.system('true')", "os.system is refused here"),
        ("import os\nos.kill(os.getppid(), 9)", "os.kill is refused here"),
        ("import os\nos.remove('request')", "os.remove is refused here"),
        ("import subprocess", "import is refused here"),
        ("import socket", "import is refused here"),
        ("import ctypes", "import is refused here"),
        ("import resource\nresource.setrlimit(0, (9, 9))", "resource.setrlimit is refused here"),
        ("open('new', 'w')", "open is refused here"),
        ("open('new', 'x')", "open is refused here"),
        ("open('request', 'a')", "open is refused here"),
        ("import os\nopen(os.__file__, 'r+')", "open is refused here"),
        ("open('/etc/passwd')", "open is refused here"),
        ("import os\nos.open('new', os.O_CREAT)", "open is refused here"),
        ("input()", "EOFError"),
    ],
)
def test_what_is_wrong_or_not_allowed_fails(code, error):
    result = run_python(code, timeout_seconds=20)
    assert result.outcome == "failed"
    assert error in result.output


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.exit()",
        "import sys\nsys.exit(3)",
        "import os\nos._exit(0)",
        "import os, sys\nchannel = sys._getframe(1).f_globals['channel']\n"
        "channel.write('[]')\nchannel.close()\nos._exit(0)",
    ],
)
def test_code_that_ends_the_process_has_no_values(code):
    assert run_python(DOUBLE + code, ["double(3)"]) == ("failed", [], "")


@pytest.mark.full
def test_waiting_is_no_computing():
    """On a busy machine a process waits for its turn, and a right answer stays right."""
    assert run_python("import time\ntime.sleep(0.5)", timeout_seconds=0.3).outcome == "finished"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "code", ["while True: pass", "import time\ntime.sleep(60)", "try:\n    while True: pass\nexcept: pass"]
)
def test_code_that_does_not_end_is_killed(code):
    start = time.monotonic()
    result = run_python(code, timeout_seconds=0.3)
    assert result.outcome == "timed out"
    assert time.monotonic() - start < 20


@pytest.mark.full
def test_no_process_and_no_file_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **kwargs: started.append(popen(*args, **kwargs)) or started[0]
    )
    run_python("while True: pass", timeout_seconds=0.3)
    (process,) = started
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert list(tmp_path.iterdir()) == []


def test_output_is_bounded():
    result = run_python("while True:\n    print('a' * 1000)", timeout_seconds=20)
    assert result.outcome == "failed"
    assert len(result.output) <= MAX_OUTPUT_BYTES


def test_nothing_of_the_environment_is_seen(monkeypatch):
    monkeypatch.setenv("WEDLM_SECRET", "hidden")
    code = "import os, sys\nseen = sorted(os.environ)\nfolder = os.getcwd()"
    variables, folder, arguments, path = run_python(code, ["seen", "folder", "sys.argv", "sys.path"]).values
    assert set(variables) <= {"LC_CTYPE"}  # Python itself sets it
    assert Path(folder) != Path.cwd() and not Path(folder).exists()
    assert arguments == [""] and "" not in path


@pytest.mark.parametrize(
    "code",
    [
        "print([6])",
        "print('[6]')\nimport os\nos._exit(0)",
        "import sys\nsys.stdout = sys.stderr = None",
        "class Same(int):\n    __eq__ = lambda self, other: True\n    __repr__ = lambda self: 'anything'\n"
        "double = lambda n: Same(0)",
        "class Same:\n    __eq__ = lambda self, other: True\ndouble = lambda n: Same()",
        "double = lambda n: float('nan')",
        "repr = lambda values: '[6]'",
    ],
)
def test_a_wrong_function_cannot_pass_by_what_it_prints_or_claims_to_equal(code):
    wrong = "def double(n):\n    return n\n"
    assert run_python(wrong + code, ["double(3)", "double(4)"]).values != [6, 8]


def test_one_bad_function_leaves_the_next_alone():
    good = (DOUBLE, ["double(3)"])
    results = [run_python(*call) for call in (good, ("int = str = repr = None\n1 / 0", []), good)]
    assert [result.values for result in results] == [[6], [], [6]]

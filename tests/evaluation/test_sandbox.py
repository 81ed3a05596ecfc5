"""The sandbox runs code, returns its values, and refuses what could do harm."""

import os
import socket
import time
from pathlib import Path

import pytest

from wedlm.evaluation import sandbox
from wedlm.evaluation.sandbox import MAX_ANSWER_BYTES, run_python

DOUBLE = "def double(n):\n    return 2 * n\n"
# Code that takes the guard away: no guard inside a process holds against the process.
UNGUARDED = "import sys\nsys._getframe(1).f_globals['guard'].__code__ = (lambda event, arguments: None).__code__\n"


@pytest.fixture(params=["here", "nothing"])
def is_apart(request, monkeypatch):
    """Whether the system keeps the code apart: with the boundary that is chosen here, and with none."""
    if request.param == "nothing":
        monkeypatch.setattr(sandbox, "boundary", lambda: ([], {}))
    return bool(sandbox.boundary()[0])


def test_the_values_come_back_as_they_are():
    code = "def same(x):\n    print('seen', x)\n    return x\n"
    values = [3, -1.5, True, None, "a\n'ü'", [1, [2, (3,)]], {"a": {1, 2}}, b"\x00"]
    result = run_python(code, [f"same({value!r})" for value in values])
    assert result.outcome == "finished"
    assert repr(result.values) == repr(values)  # 1 and True differ


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import torch", "No module named 'torch'"),
        ("x = 'a' * 10**12", "MemoryError"),
        ("import os\nos.fork()", "os.fork is refused here"),
        ("import subprocess", "import of _posixsubprocess is refused here"),
        ("import resource\nresource.setrlimit(0, (9, 9))", "resource.setrlimit is refused here"),
        ("open('new', 'w')", "open is refused here"),
        ("import os\nopen(os.__file__, 'r+')", "open is refused here"),
        ("import sys\nopen(sys.base_prefix + '/..' * 9 + '/etc/passwd')", "open is refused here"),
        ("import os\nos.listdir('/')", "os.listdir is refused here"),
        ("import os\nos.open('new', os.O_CREAT)", "open is refused here"),
        ("import os\nos.mkfifo('new')", "os.mkfifo is refused here"),
        ("import posix\nposix.mknod('new')", "os.mknod is refused here"),
        ("import sys\ndel sys.modules['posix']\nimport posix", "import of posix is refused here"),
        ("import readline\nreadline.read_history_file('/etc/passwd')", "import of readline is refused here"),
        (
            "import sqlite3\nsqlite3.connect('file:/etc/passwd?mode=ro', uri=True)",
            "import of _sqlite3 is refused here",
        ),
        ("import _posixshmem\n_posixshmem.shm_open('/new', 66)", "import of _posixshmem is refused here"),
        ("import _gdbm", "import of _gdbm is refused here"),
        ("import _tkinter", "import of _tkinter is refused here"),
        ("import _xxsubinterpreters", "import of _xxsubinterpreters is refused here"),
        ("input()", "EOFError"),
    ],
)
def test_what_is_wrong_or_not_allowed_fails(code, error):
    result = run_python(code, timeout_seconds=20)
    assert result.outcome == "failed"
    assert error in result.error


@pytest.mark.parametrize(
    ("code", "error"), [("import sys\nsys.exit(0)", "SystemExit: 0"), ("import os\nos._exit(0)", "")]
)
def test_code_that_ends_the_process_has_no_values(code, error):
    assert run_python(DOUBLE + code, ["double(3)"]) == ("failed", [], error)
    assert run_python(DOUBLE + code) == ("failed", [], error)


@pytest.mark.parametrize(
    "answer",
    [
        "repr({'values': []}).encode()",  # the word of the caller is missing
        "names['requests'].read() + b'[0]'",  # it is there, and what follows is no answer
        "names['requests'].read() + repr({'values': [6]}).encode()",  # the wrong number of values
    ],
)
def test_an_answer_that_the_code_forges_is_none(answer):
    """Code that reads the word too can forge the end of a test without values, as the docs say."""
    code = f"import os, sys\nnames = sys._getframe(1).f_globals\nnames['answers'].write({answer})\n"
    assert run_python(code + "names['answers'].close()\nos._exit(0)").outcome == "failed"


@pytest.mark.parametrize(
    "code",
    [
        UNGUARDED + "import sqlite3\nsqlite3.connect(path).execute('create table t(x)')",
        UNGUARDED + "open(path, 'r+').write('text')",
    ],
)
def test_no_file_gets_a_byte(tmp_path, is_apart, code):
    tmp_path.chmod(0o777)
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("kept")
    old.chmod(0o666)
    for path in (new, old):
        run_python(f"path = {str(path)!r}\n{code}")
    assert old.read_text() == "kept"
    # Without a boundary an empty file may appear, where the user of this process may make one.
    assert not new.exists() if is_apart else not new.exists() or new.stat().st_size == 0


def test_code_without_the_guard_meets_the_boundary(tmp_path, is_apart):
    """Without bubblewrap nobody reaches no more than the network, and any other user does what that user may do."""
    (tmp_path / "file").write_text("text")
    calls = {
        "read": f"open({str(tmp_path / 'file')!r}).read()",
        "read by ..": f"open(sys.base_prefix + '/..' * 9 + {str(tmp_path / 'file')!r}).read()",
        "list": f"os.listdir({str(tmp_path)!r})",
        "delete": f"os.remove({str(tmp_path / 'file')!r})",
        "reach": "socket.create_connection(('127.0.0.1', port))",
        "kill": "os.kill(caller, 0)",
    }
    with socket.create_server(("127.0.0.1", 0)) as server:
        tried = "".join(
            f"try:\n    {call}\n    done.append({name!r})\nexcept OSError: pass\n" for name, call in calls.items()
        )
        names = f"port, caller, done = {server.getsockname()[1]}, {os.getpid()}, []\n"
        (done,) = run_python(f"{UNGUARDED}import os, socket\n{names}{tried}", ["done"]).values
    _, rights = sandbox.boundary()
    assert done == ([] if is_apart else ["reach"] if rights else list(calls))


def test_without_bubblewrap_root_becomes_nobody_if_nobody_can_run_python(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    command, rights = sandbox.boundary.__wrapped__()
    monkeypatch.setattr(sandbox, "boundary", lambda: (command, rights))
    assert command == []
    assert run_python("import os", ["os.getuid()"]).values == [rights.get("user", os.getuid())]


@pytest.mark.parametrize("code", ["import time\ntime.sleep(60)", "try:\n    while True: pass\nexcept: pass"])
def test_code_that_does_not_end_is_killed(code, is_apart):
    start = time.monotonic()
    result = run_python(code, timeout_seconds=0.3)
    assert result.outcome == "timed out"
    assert time.monotonic() - start < 20


def test_the_limit_of_cpu_time_holds_without_the_clock(monkeypatch, is_apart):
    monkeypatch.setattr(sandbox, "WAITING", 1000)
    code = "import time\nwhile time.process_time() < {}: pass"
    assert run_python(code.format(0.5), timeout_seconds=0.9).outcome == "finished"
    assert run_python(code.format(2.5), timeout_seconds=0.9).outcome == "timed out"


def test_no_process_and_no_file_stays(tmp_path, monkeypatch, is_apart):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    start, channels = sandbox.start, []

    def start_and_listen(*arguments):
        process = start(*arguments)
        channels.append(os.dup(process.stdout.fileno()))
        return process

    monkeypatch.setattr(sandbox, "start", start_and_listen)
    assert run_python("import time\ntime.sleep(600)", timeout_seconds=0.3).outcome == "timed out"
    (channel,) = channels
    assert os.read(channel, 1) == b""  # the channel ends when nobody who could write to it is left
    os.close(channel)
    assert list(tmp_path.iterdir()) == []


def test_printing_goes_nowhere_and_the_answer_is_bounded():
    assert run_python("for i in range(10_000):\n    print('a' * 1000)", ["i"]).values == [9_999]
    assert run_python("", [f"'a' * {MAX_ANSWER_BYTES}"]).outcome == "failed"
    flood = "import sys\nwhile True:\n    sys._getframe(1).f_globals['answers'].write(b'a' * 1000)"
    assert run_python(flood, timeout_seconds=20).outcome == "failed"


def test_nothing_of_the_environment_is_seen(monkeypatch):
    monkeypatch.setenv("WEDLM_SECRET", "hidden")
    code = "import os, sys\nseen = sorted(os.environ)\nfolder = os.getcwd()"
    variables, folder, arguments, path = run_python(code, ["seen", "folder", "sys.argv", "sys.path"]).values
    assert set(variables) <= {"LC_CTYPE", "PWD"}  # Python and bubblewrap set them
    assert Path(folder) == Path("/") or not Path(folder).exists()
    assert arguments == [""] and "" not in path

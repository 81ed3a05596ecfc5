"""Runs Python code that nobody has read, in a process of its own with little time, little memory and nothing to reach.

Meant for what a small model writes by accident, not for an attacker: the system's kernel is not hidden from the code.
"""

import ast
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

MAX_OUTPUT_BYTES = 65_536
WAITING = 5  # times the seconds of computing that a process may take in all: on a busy machine it gets its turn late

# Runs in the child. The limits come as arguments, the code in a file of the working directory, and values leave in
# another, which is open before the code runs.
CHILD = """
import resource, sys
seconds, memory_bytes, output_bytes = map(int, sys.argv[1:])
code, *expressions = eval(open("request").read())
channel = open("values", "w")
library = sys.base_prefix + "/"

def guard(event, arguments):
    room = event.partition(".")[0]
    if event == "open":
        path, _, flags = arguments
        refused = not str(path).startswith(library) or flags & 0o1103  # to write, to create, to truncate
    elif event == "import":
        refused = arguments[0] in ("_ctypes", "_posixsubprocess", "_socket")
    else:
        refused = room in ("os", "pty", "fcntl", "mmap", "signal", "resource", "shutil", "subprocess", "socket")
        refused = refused and event not in ("os.listdir", "os.scandir")  # an import looks into folders
    if refused:
        raise PermissionError(event + " is refused here")

for limit, value in (
    (resource.RLIMIT_AS, memory_bytes),
    (resource.RLIMIT_CPU, seconds),
    (resource.RLIMIT_FSIZE, output_bytes),
    (resource.RLIMIT_NPROC, 0),  # does not bind root, whom the guard stops
    (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (value, value))
sys.argv = [""]
sys.addaudithook(guard)
namespace = {"__name__": "answer"}
exec(compile(code, "answer.py", "exec"), namespace)
channel.write(repr([eval(expression, namespace) for expression in expressions]))
channel.close()
"""


class PythonResult(NamedTuple):
    outcome: Literal["finished", "failed", "timed out"]
    values: list[Any]  # of the expressions, one each; empty unless finished
    output: str  # what was printed, errors included, as far as MAX_OUTPUT_BYTES


def run_python(
    code: str,
    expressions: Sequence[str] = (),
    timeout_seconds: float = 2.0,
    memory_bytes: int = 256 * 2**20,
) -> PythonResult:
    """Executes `code`, then evaluates each expression with what it defined.

        run_python("def double(n): return 2 * n", ["double(3)", "double(-1)"]).values == [6, -2]

    Values are literals (numbers, strings, lists and so on); anything else fails. They do not pass through what the
    code prints. Since the caller keeps the values it expects to itself, code cannot claim them without computing them.
    `timeout_seconds` are of computing, and whole ones.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "request").write_text(repr([code, *expressions]), encoding="utf-8")
        limits = [math.ceil(timeout_seconds), memory_bytes, MAX_OUTPUT_BYTES]
        with open(Path(folder, "output"), "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", CHILD, *map(str, limits)],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # its process group, children included, is killed as one
            )
        outcome = "failed"
        try:
            status = process.wait(WAITING * timeout_seconds)
            # Killed: it has computed for as long as it may.
            outcome = {0: "finished", -signal.SIGKILL: "timed out"}.get(status, "failed")
        except subprocess.TimeoutExpired:
            outcome = "timed out"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed = Path(folder, "output").read_text(encoding="utf-8", errors="replace")
        values = read_values(Path(folder, "values"), len(expressions)) if outcome == "finished" else None
    if values is None:
        return PythonResult("failed" if outcome == "finished" else outcome, [], printed)
    return PythonResult("finished", values, printed)


def read_values(path: Path, number: int) -> list[Any] | None:
    """None for what is not a list of so many literals: the code under test may have ended the process on its own."""
    try:
        values = ast.literal_eval(path.read_text(encoding="utf-8"))
    except (ValueError, SyntaxError, RecursionError, MemoryError, FileNotFoundError):
        return None
    return values if isinstance(values, list) and len(values) == number else None

"""Runs code that a model wrote, in a process with little time and memory, no network and no files.

It guards against accidents, not against an attacker: the code can still reach the kernel of the system.
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
WAITING = 5  # wall-clock limit, as a multiple of the limit of CPU time: on a busy machine a process waits its turn

# The program of the child process. Limits arrive as arguments, the code in a file of the working directory. Values
# leave through another file there, which is opened before the code runs.
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
        refused = not str(path).startswith(library) or flags & 0o1103  # writes, creates or truncates
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
    (resource.RLIMIT_NPROC, 0),  # root is exempt from it, but not from the guard
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
    """The result of running code.

    Args:
        outcome (`str`):
            `"finished"`, `"failed"` or `"timed out"`.
        values (`list[Any]`):
            The value of each expression; empty unless the code finished.
        output (`str`):
            The output of the code, errors included, cut at MAX_OUTPUT_BYTES.
    """

    outcome: Literal["finished", "failed", "timed out"]
    values: list[Any]
    output: str


def run_python(
    code: str,
    expressions: Sequence[str] = (),
    timeout_seconds: float = 2.0,
    memory_bytes: int = 256 * 2**20,
) -> PythonResult:
    """Executes `code`, then evaluates expressions in its namespace.

        run_python("def double(n): return 2 * n", ["double(3)", "double(-1)"]).values == [6, -2]

    Values must be literals (numbers, strings, lists and so on). They return through a file of their own, so that
    printing does not forge them, and the code never sees the values that the caller expects.

    Args:
        code (`str`):
            The program.
        expressions (`Sequence[str]`, *optional*):
            The expressions to evaluate afterwards.
        timeout_seconds (`float`, defaults to 2.0):
            Limit of CPU time, rounded up to whole seconds.
        memory_bytes (`int`, defaults to 256 MiB):
            Limit of the address space.
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
                start_new_session=True,  # a process group of its own, which is killed as a whole
            )
        outcome = "failed"
        try:
            status = process.wait(WAITING * timeout_seconds)
            # The system kills a process at its limit of CPU time.
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
    """Returns the `number` values, or None if the file lacks them: the code may have ended the process itself."""
    try:
        values = ast.literal_eval(path.read_text(encoding="utf-8"))
    except (ValueError, SyntaxError, RecursionError, MemoryError, FileNotFoundError):
        return None
    return values if isinstance(values, list) and len(values) == number else None

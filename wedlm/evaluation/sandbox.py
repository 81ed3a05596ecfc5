"""Runs code that a model wrote, in a process with little time and memory, and without network and files.

It guards against accidents, not against an attacker. Where bubblewrap works, the system shows the code nothing but
Python's own files. Elsewhere a guard inside the process refuses the same, so that a program scores the same on every
machine; but code that looks for the guard can remove it.
"""

import ast
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

MAX_ANSWER_BYTES = 1_000_000
MEMORY_BYTES = 256 * 2**20  # of the address space
WAITING = 5  # wall-clock limit, as a multiple of the limit of CPU time: on a busy machine a process waits its turn
NOBODY = 65534  # the user without rights, by convention

# The program of the child process. Its arguments are the length of the request and the limits. The request comes
# through the standard input. Behind it stands a secret word, which the program reads when the code has ended and puts
# before its answer: an answer without the word is none. The code itself has neither of the two channels.
CHILD = """
import os, resource, sys
length, seconds, memory_bytes = map(int, sys.argv[1:])
requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
code, *expressions = eval(requests.read(length))
nowhere = os.open(os.devnull, os.O_RDWR)
for stream in range(3):
    os.dup2(nowhere, stream)
realpath, library = os.path.realpath, os.path.realpath(sys.base_prefix) + os.sep
# What the guard is not asked about: modules that open files, reach memory or run code by themselves, and calls.
MODULES = set(
    "_ctypes _dbm _gdbm _interpreters _multiprocessing _posixshmem _posixsubprocess _socket _sqlite3 _testcapi "
    "_testinternalcapi _tkinter _xxsubinterpreters nis posix readline spwd".split()
)
CALLS = set("chroot mkfifo mknod pidfd_open setns setpriority unshare".split())

def refuse(what, error=PermissionError):
    raise error(what + " is refused here")

def guard(event, arguments):
    module = event.partition(".")[0]
    if event in ("open", "os.listdir", "os.scandir"):  # an import reads files and looks into folders
        is_outside = not realpath(str(arguments[0])).startswith(library)
        refused = is_outside or event == "open" and arguments[2] & 0o1103  # writes, creates or truncates
    elif event == "import":
        refused = arguments[0] in MODULES
    else:
        refused = module in ("os", "pty", "fcntl", "mmap", "signal", "resource", "shutil", "subprocess", "socket")
    if refused and event == "import":  # modules that can do without another one expect this error
        refuse("import of " + arguments[0], ImportError)
    if refused:
        refuse(event)

for limit, value in (
    (resource.RLIMIT_AS, memory_bytes),
    (resource.RLIMIT_CPU, seconds),
    (resource.RLIMIT_FSIZE, 0),  # no file gets a byte, by whatever means it is written
    (resource.RLIMIT_NPROC, 0),  # root is exempt from it
    (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (value, value))
sys.argv = [""]
for call in CALLS.intersection(vars(os)):
    for module in (os, sys.modules[os.name]):
        setattr(module, call, lambda *arguments, call=call, **named: refuse("os." + call))
sys.addaudithook(guard)
namespace = {"__name__": "answer"}
try:
    exec(compile(code, "answer.py", "exec"), namespace)
    answer = repr({"values": [eval(expression, namespace) for expression in expressions]})
except BaseException as error:
    answer = repr({"error": type(error).__name__ + ": " + str(error)})
answers.write(requests.read() + answer.encode())
answers.close()
"""

# bubblewrap gives the process no network, no rights, and of all files only those that Python is made of.
BUBBLEWRAP = "--unshare-all --die-with-parent --cap-drop ALL --chdir / --dev /dev".split()
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")


class PythonResult(NamedTuple):
    outcome: Literal["finished", "failed", "timed out"]
    values: list[Any]  # of the expressions; empty unless the code finished
    error: str  # that the code failed with; empty if it finished, or ended the process itself


def run_python(code: str, expressions: Sequence[str] = (), timeout_seconds: float = 2.0) -> PythonResult:
    """Executes `code` within so many seconds of CPU time, rounded up, then evaluates expressions in its namespace.

        run_python("def double(n): return 2 * n", ["double(3)", "double(-1)"]).values == [6, -2]

    Values must be literals (numbers, strings, lists and so on). They return through a pipe of their own, so that
    printing does not forge them, and the code never sees the values that the caller expects. A caller without
    expressions learns only that the code ran to its end; code that searches the frames of its process can forge that.
    """
    request, word = repr([code, *expressions]).encode(), secrets.token_bytes()
    limits = [len(request), math.ceil(timeout_seconds), MEMORY_BYTES]
    with TemporaryDirectory() as folder, start(["-c", CHILD, *map(str, limits)], folder, *boundary()) as process:
        timer = threading.Timer(WAITING * timeout_seconds, process.kill)
        timer.start()
        try:
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(request + word)
            answer = process.stdout.read(MAX_ANSWER_BYTES)
            process.stdout.close()
            status = process.wait()
        finally:
            timer.cancel()
            process.kill()
    # The timer kills the process, or else the system at the limit of CPU time, which bubblewrap tells as a shell does.
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return PythonResult("timed out", [], "")
    match read_answer(answer, word):
        case {"values": list(values)} if len(values) == len(expressions):
            return PythonResult("finished", values, "")
        case {"error": str(error)}:
            return PythonResult("failed", [], error)
    return PythonResult("failed", [], "")


def read_answer(answer: bytes, word: bytes) -> Any:
    """The answer of the child process, or None if the code ended the process itself."""
    if not answer.startswith(word):
        return None
    try:
        return ast.literal_eval(answer.removeprefix(word).decode())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def start(arguments: list[str], folder: str, command: list[str], rights: dict[str, Any]) -> subprocess.Popen:
    """Starts Python within a boundary, without the packages of this environment, in a session of its own."""
    return subprocess.Popen(
        [*command, os.path.realpath(sys.executable), "-I", "-S", "-X", "utf8", *arguments],
        cwd=folder,
        env={},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **rights,
    )


@cache
def boundary() -> tuple[list[str], dict[str, Any]]:
    """The strictest boundary around a process that works here: a command before Python's, and arguments of Popen.

    It is bubblewrap, or else for root a user without rights, or else nothing.
    """
    for command, rights in possible_boundaries():
        with suppress(OSError, subprocess.SubprocessError), start(["-c", ""], "/", command, rights) as process:
            process.communicate()
            if process.returncode == 0:
                return command, rights
    return [], {}


def missing_boundary() -> str | None:
    """A sentence about what stands around the code in place of bubblewrap; None where bubblewrap works."""
    command, rights = boundary()
    if command:
        return None
    user = "root" if os.geteuid() == 0 else "you"
    return "The model's code runs without bubblewrap, " + (
        "as the user nobody, and reaches the network."
        if rights
        else f"with all rights of {user}: only a guard inside its process keeps it from files and the network."
    )


def check_boundary(unsafe: bool) -> None:
    """Refuses to run code as root with no boundary around it, unless the caller accepts that."""
    if not unsafe and os.geteuid() == 0 and boundary() == ([], {}):
        raise ValueError(
            "--run-code would run the model's code with all rights of root, because bubblewrap does not work here and "
            f"the user nobody may not run {os.path.realpath(sys.executable)}; install bubblewrap, or be another user, "
            "or pass --unsafe-run-code as well."
        )


def possible_boundaries() -> Iterator[tuple[list[str], dict[str, Any]]]:
    if (bubblewrap := shutil.which("bwrap")) is not None:
        shown = (*LIBRARIES, os.path.realpath(sys.base_prefix))
        yield [bubblewrap, *BUBBLEWRAP, *(word for path in shown for word in ("--ro-bind-try", path, path))], {}
    if os.geteuid() == 0:  # the user must be able to read Python's files
        yield [], {"user": NOBODY, "group": NOBODY, "extra_groups": []}

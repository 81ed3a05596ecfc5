"""A process for work that a stranger's text may make endless: it has little time and memory, and can be replaced."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

MEMORY_BYTES = 2**30  # beside what the process needs to start
TOO_MUCH_MEMORY = "it takes too much memory"
MAIN = "from wedlm.checkpoints.limited_process import main; main()"


class Refused(ValueError):
    """A question without an answer; the message is the reason, for the middle of a sentence."""


class LimitedProcess:
    """Answers questions in a process, which starts with the first one, and anew when it has ended.

    The process calls `prepare(argument)` once, a function of a module, since it is pickled. That returns the function
    which answers a question, and whose errors become the reason of `Refused`.
    """

    def __init__(self, prepare: Callable[[Any], Callable[[Any], Any]], argument: Any = None):
        self.first, self.lock = (prepare, argument), threading.Lock()
        self.process: subprocess.Popen | None = None
        self.is_ready, self.owner = False, 0

    def start(self) -> None:
        """Starts the process, and does not wait for it; a process that was forked from this one has its own."""
        if self.process is not None and self.owner == os.getpid() and self.process.poll() is None:
            return
        self.close()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", MAIN],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.is_ready, self.owner = False, os.getpid()
        self.ending = weakref.finalize(self, end, self.process, self.owner)
        self.send(self.first)

    def ask(self, question: Any, seconds: float) -> Any:
        """The answer to a question, which may take so many seconds of computing; `Refused` says why there is none."""
        with self.lock:
            self.start()
            process = self.process
            try:
                if not self.is_ready:
                    self.receive()
                    self.is_ready = True
                self.send((question, seconds))
                return self.receive()
            except Refused:
                raise
            except (EOFError, OSError) as error:
                self.close()
                if not self.is_ready:
                    raise RuntimeError(f"The process of {self.first[0].__name__} has not started.") from error
                ended_by_clock = process.wait() == -getattr(signal, "SIGPROF", 0)
                raise Refused(
                    f"it takes longer than {seconds:g} seconds" if ended_by_clock else TOO_MUCH_MEMORY
                ) from error
            except BaseException:  # such as Ctrl-C: the answer to come must not be taken for that to another question
                self.close()
                raise

    def send(self, message: Any) -> None:
        pickle.dump(message, self.process.stdin)
        self.process.stdin.flush()

    def receive(self) -> Any:
        answer, reason = pickle.load(self.process.stdout)
        if reason is not None:
            raise Refused(reason)
        return answer

    def close(self) -> None:
        """Ends the process, if there is one; the next question starts another."""
        process, self.process = self.process, None  # first, since a thread that waits for an answer closes, too
        if process is not None:
            self.ending()


def end(process: subprocess.Popen, owner: int) -> None:
    if owner == os.getpid():  # not that of the process which this one was forked from
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            pipe.close()


# --- In the process ---


def main() -> None:
    """Reads questions from the standard input and writes the answers to the standard output, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the caller, which ends this process
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever else is printed

    def say(*answer_and_reason: Any) -> None:
        pickle.dump(answer_and_reason, answers)
        answers.flush()

    with suppress(EOFError):  # the caller has ended
        prepare, argument = pickle.load(questions)
        answer = prepare(argument)
        say(None, None)  # ready
        limit_memory()
        while True:
            question, seconds = pickle.load(questions)
            limit_time(seconds)
            try:
                value, reason = answer(question), None
            except MemoryError:
                value, reason = None, TOO_MUCH_MEMORY
            except Exception as error:  # a stranger's text may make a library raise anything
                value, reason = None, str(error)
            limit_time(0)
            say(value, reason)


def limit_memory() -> None:
    with suppress(ImportError, OSError):  # only Linux has both
        import resource

        num_pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = num_pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def limit_time(seconds: float) -> None:
    """Lets the system end this process after so many seconds of computing, also if its caller has ended; 0 for never.

    The time on the clock would depend on how busy the machine is.
    """
    with suppress(AttributeError):  # Windows has no such clock
        signal.setitimer(signal.ITIMER_PROF, seconds)

"""`make mutants`: changes one place of the source at a time, in memory, and shows the changes that no test notices.

Importing torch and transformers takes seconds, so every mutant is a fork of one process that has imported them, and in
which pytest then imports the package with the changed source in the place of one module. Nothing is written to the
source files: tests that compare or copy them, and processes that tests start, see the unchanged code.
"""

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from mutations import Mutation, mutations

REPOSITORY = Path(__file__).parent.parent
SUBPACKAGES = ["generation", "modeling_wedlm", "wedlm/batching", "training"]
PREPARED = [  # what tests import; the package itself must be left to the forks
    "torch", "transformers", "transformers.generation.streamers", "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3", "transformers.models.auto.modeling_auto", "transformers.trainer",
    "accelerate", "datasets", "hypothesis.strategies", "peft", "safetensors.torch", "typer.testing", "xdist",
]  # fmt: skip
PYTEST = ["--quiet", "--exitfirst", "-p", "no:cacheprovider", "-p", "no:xdist"]
SHORT = ["-m", "not (full or slow or browser or real or ecosystem or vllm)", "--hypothesis-profile=mutants"]


class Verdict(NamedTuple):
    outcome: str  # "noticed", "alive" or "timeout"
    seconds: float
    test: str = ""  # which noticed


class Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module a source of its own."""

    def __init__(self, module: str, file: Path, source: str):
        self.module, self.file, self.source = module, file, source

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, self.file, loader=self) if name == self.module else None

    def exec_module(self, module):
        exec(compile(self.source, self.file, "exec"), vars(module))


class FirstFailure:
    """A plugin of pytest that hands on which test failed first."""

    def __init__(self, pipe: int):
        self.pipe = pipe

    def pytest_runtest_logreport(self, report):
        if report.failed:
            os.write(self.pipe, f"{report.nodeid}\n".encode())

    def pytest_collectreport(self, report):
        self.pytest_runtest_logreport(report)


def run_tests(tests: list[Path], options: list[str], limit: float, replaced: Replaced | None = None) -> Verdict:
    """Runs `tests` in a fork of this process, with a module replaced, for `limit` seconds at most."""
    reading, writing = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()  # what the tests start is ended with them
            silence = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(silence, stream)
            if replaced is not None:
                sys.meta_path.insert(0, replaced)
            os._exit(pytest.main([*PYTEST, *options, *map(str, tests)], plugins=[FirstFailure(writing)]))
        finally:
            os._exit(pytest.ExitCode.INTERNAL_ERROR)
    os.close(writing)
    code = wait(child, start + limit)
    with os.fdopen(reading) as lines:
        failed = lines.readline().strip()
    seconds = time.monotonic() - start
    if code is None:
        return Verdict("timeout", seconds)
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return Verdict("alive", seconds)
    return Verdict("noticed", seconds, failed or f"pytest ended with exit code {code}")


def wait(child: int, deadline: float) -> int | None:
    """The exit code of `child`; None if it went on until the deadline. Ends all that it started."""
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


# --- This repository ---


class TestRuns:
    """Runs the tests of the mutants of a source file: those named after it, then the others of its subpackage."""

    def __init__(self):
        self.seconds = {}  # of each test file without a mutant

    def verdict(self, file: Path, mutation: Mutation) -> Verdict:
        replaced, spent = Replaced(module_of(file), file, mutation.source), 0
        for tests in tests_for(file):
            limit = 10 + 3 * sum(map(self.seconds_without_mutant, tests))
            verdict = run_tests(tests, SHORT, limit, replaced)
            spent += verdict.seconds
            if verdict.outcome != "alive":
                break
        return verdict._replace(seconds=spent)

    def seconds_without_mutant(self, test: Path) -> float:
        if test not in self.seconds:
            verdict = run_tests([test], SHORT, limit=900)
            if verdict.outcome != "alive":
                sys.exit(f"Without a mutant: {verdict.outcome}, {verdict.test or test}; mend that first.")
            self.seconds[test] = verdict.seconds
        return self.seconds[test]


def tests_for(file: Path) -> list[list[Path]]:
    subpackage = REPOSITORY / "tests" / file.parent.name
    own = subpackage / f"test_{file.stem}.py"
    others = sorted(path for path in subpackage.glob("test_*.py") if path != own)
    return [tests for tests in ([own] if own.exists() else [], others) if tests]


def module_of(file: Path) -> str:
    """The dotted name of a source file; subpackages at the top level of the repository belong to wedlm as well."""
    module = ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)
    return module if module.startswith("wedlm.") else f"wedlm.{module}"


def files_of(only: list[str]) -> list[Path]:
    files = []
    for name in only:
        path = REPOSITORY / name
        if not path.exists():
            sys.exit(f"{name} is not a file or folder of the repository; give one such as generation/verified.py.")
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return files


def told(file: Path, mutation: Mutation) -> str:
    """The mutation as a diff of one line, with its place."""
    before = file.read_text(encoding="utf-8").splitlines()
    after = mutation.source.splitlines()
    removed = before[mutation.line - 1 : mutation.line + mutation.before.count("\n")]
    place = f"{file.relative_to(REPOSITORY)}:{mutation.line}"
    return f"{place}\n  - {' '.join(map(str.strip, removed))}\n  + {after[mutation.line - 1].strip()}"


def table(counts: dict[str, Counter]) -> str:
    """A line for each file and each subpackage, and one for all."""
    total = Counter()
    for file in list(counts):
        counts[f"{Path(file).parent}/"] = counts.get(f"{Path(file).parent}/", Counter()) + counts[file]
        total += counts[file]
    lines = ["| file | mutants | noticed | of them by a time limit | alive | score |", "| --- |" + " ---: |" * 5]
    for name, of_file in [*sorted(counts.items()), ("all", total)]:
        num, alive = of_file.total(), of_file["alive"]
        lines.append(
            f"| {name} | {num} | {num - alive} | {of_file['timeout']} | {alive} | {(num - alive) / num:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "only", nargs="*", default=SUBPACKAGES, help="files or folders; by itself the four subpackages of the model"
    )
    parser.add_argument("--num", type=int, default=100, help="how many mutants are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "mutants.json")
    options = parser.parse_args()

    places = [(file, found) for file in files_of(options.only) for found in mutations(file.read_text("utf-8"))]
    drawn = random.Random(options.seed).sample(places, min(options.num, len(places)))
    os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")  # before torch is imported, as in tests/conftest.py
    for module in PREPARED:
        importlib.import_module(module)
    assert not any(name.partition(".")[0] == "wedlm" for name in sys.modules), "the forks must import it"

    runs, results, counts = TestRuns(), [], {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for number, (file, mutation) in enumerate(sorted(drawn), start=1):
        verdict, name = runs.verdict(file, mutation), str(file.relative_to(REPOSITORY))
        place = f"{name}:{mutation.line}"
        counts.setdefault(name, Counter())[verdict.outcome] += 1
        results.append({"place": place, "before": mutation.before, "after": mutation.after, **verdict._asdict()})
        print(f"{number}/{len(drawn)} {verdict.outcome} in {verdict.seconds:.0f} s  {place}", flush=True)
        if verdict.outcome == "alive":
            print(told(file, mutation), flush=True)
        record = {"command": sys.argv, "places": len(places), "drawn": len(drawn), "results": results}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(counts))


if __name__ == "__main__":
    main()

"""Keeps the results of a long measurement between runs, so that a stopped run can be continued."""

import json
import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any


def digest_of(value: Any) -> str:
    """16 hexadecimal digits that identify a JSON value."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def read_results(path: Path) -> dict[Hashable, Any]:
    """The results in the file of a WorkFile, without a line that a stopped run left unfinished."""
    results: dict[Hashable, Any] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
        for line in lines[:-1]:
            key, result = json.loads(line)
            results[tuple(key)] = result
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and its answers are made anew.") from error
    return results


class WorkFile:
    """Results by key, kept between runs with equal settings.

        work = WorkFile(Path("build/work"), {"weights": "1f0e...", "num_examples": 100})
        work.add(("counting", "streaming", 0), [1, 2])
        work[("counting", "streaming", 0)] == [1, 2]    # in the next run as well

    The file has a line of JSON for each result; its name is a digest of the settings, which are all that the results
    depend on.
    """

    def __init__(self, folder: Path, settings: dict):
        self.path = folder / f"{digest_of(settings)}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self.results = read_results(self.path)
        if self.path.exists():  # a run may have been stopped while it wrote the last line
            with open(self.path, "rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)

    def __contains__(self, key: tuple) -> bool:
        return key in self.results

    def __getitem__(self, key: tuple) -> Any:
        return self.results[key]

    def add(self, key: tuple, result: Any) -> None:
        """Stores a result, on disk as well."""
        self.results[key] = result
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps([key, result]) + "\n")

    def remove(self) -> None:
        """Deletes the file, and its folder unless files of other runs lie there."""
        self.path.unlink(missing_ok=True)
        if not any(self.path.parent.iterdir()):
            self.path.parent.rmdir()


@contextmanager
def resumable(work: WorkFile) -> Iterator[None]:
    """Says on standard error that the block continues an earlier run, or how to continue it.

    The file is removed if the block fails before its first result.
    """
    if work.results:
        print(f"Going on from the results in {work.path.parent}.", file=sys.stderr)
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nStopped; the same command goes on from the results in {work.path.parent}.", file=sys.stderr)
        raise
    except BaseException:
        if not work.results:
            work.remove()
        raise

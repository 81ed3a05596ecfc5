"""What a long measurement has found so far, so that one that was stopped goes on where it was."""

import json
from collections.abc import Hashable
from hashlib import sha256
from pathlib import Path
from typing import Any


def digest_of(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class WorkFile:
    """Results by key, kept between runs of equal `settings`: a line of JSON each, in a file named by the settings.

    work = WorkFile(Path("build/work"), {"weights": "1f0e...", "num_examples": 100})
    work.add(("counting", "streaming", 0), [1, 2])
    work[("counting", "streaming", 0)] == [1, 2]    # in the next run as well
    """

    def __init__(self, folder: Path, settings: dict):
        self.path = folder / f"{digest_of(settings)}.jsonl"
        self.results: dict[Hashable, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text(encoding="utf-8").split("\n") if self.path.exists() else []
        if lines and lines[-1]:  # the run was stopped in the middle of a line
            lines[-1] = ""
            self.path.write_text("\n".join(lines), encoding="utf-8")
        for line in lines[:-1]:
            key, result = json.loads(line)
            self.results[tuple(key)] = result

    def __contains__(self, key: tuple) -> bool:
        return key in self.results

    def __getitem__(self, key: tuple) -> Any:
        return self.results[key]

    def add(self, key: tuple, result: Any) -> None:
        self.results[key] = result
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps([key, result]) + "\n")

    def remove(self) -> None:
        """Once the results are elsewhere; other runs' files beside it stay."""
        self.path.unlink(missing_ok=True)
        if not any(self.path.parent.iterdir()):
            self.path.parent.rmdir()

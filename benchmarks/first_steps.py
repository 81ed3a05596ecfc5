"""How long do a newcomer's first commands take, and how much do they put on the disk?

    python benchmarks/first_steps.py [--targets demo demo-real test] [--out benchmarks/results/first_steps.json]

The targets of make run one after another in a fresh clone with a fresh HOME. Packages come from PyPI, so the time of
the installation depends on the network. The README has the sentence that this script prints; a test compares.
"""

import json
import os
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from common import new_parser, save

from wedlm.evaluation.provenance import REPOSITORY


def bytes_of(folder: Path) -> int:
    """The bytes on the disk of all files in a folder; a file with several links counts once."""
    blocks = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        blocks[status.st_dev, status.st_ino] = 512 * status.st_blocks
    return sum(blocks.values())


def run(target: str, clone: Path, home: str) -> float:
    """Seconds that a target takes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    start = time.perf_counter()
    subprocess.run(["make", target], cwd=clone, env={**environment, "HOME": home}, check=True)
    return time.perf_counter() - start


def minutes(seconds: float) -> str:
    """minutes(91.2) == "1 min 31 s" """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest} s" if whole else f"{rest} s"


def sentence(report: dict) -> str:
    """For docs/quickstart.md."""
    first, *others = report["results"]["targets"]
    size = f"{report['results']['environment_bytes'] / 1e9:.1f} GB with torch {report['versions']['torch']}"
    told = [f"`make {first['target']}` takes {minutes(first['seconds'])} with the installation ({size})"]
    told += [f"`make {other['target']}` {minutes(other['seconds'])}" for other in others]
    *earlier, last = told
    listed = f"{', '.join(earlier)} and {last}" if earlier else last
    return f"On {report['threads']} cores of an {report['device']}, {listed}."


def main() -> None:
    parser = new_parser(__doc__, "first_steps")
    parser.add_argument("--targets", nargs="+", default=["demo", "demo-real", "test"])
    given = parser.parse_args()
    with TemporaryDirectory() as folder, TemporaryDirectory() as home:
        clone = Path(folder, "wedlm")
        subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(clone)], check=True)
        targets, size = [], 0
        for target in given.targets:
            targets.append({"target": target, "seconds": run(target, clone, home)})
            size = size or bytes_of(clone / ".venv")  # after the first, which makes it
    save(given.out, {"targets": targets, "environment_bytes": size}, "cpu")
    print(sentence(json.loads(given.out.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()

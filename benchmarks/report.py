"""What every benchmark writes beside its numbers: the command, the commit, versions and the device."""

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


def write_report(path: Path, results: object, device: str, threads: int) -> None:
    report = {
        "command": " ".join(["python", str(Path(sys.argv[0]).resolve().relative_to(REPOSITORY)), *sys.argv[1:]]),
        "commit": git("rev-parse", "HEAD")
        + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else ""),
        "versions": {name: version(name) for name in ("torch", "transformers", "wedlm")}
        | {"python": platform.python_version()},
        "device": device,
        "threads": threads,
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")

"""The benchmark of training trains all sides on the same tokens and says how memory grows."""

import json
import subprocess
import sys

import pytest
from helpers import REPOSITORY

BENCHMARK = REPOSITORY / "benchmarks" / "training.py"


@pytest.mark.slow
def test_the_benchmark_writes_its_report(tmp_path):
    out = tmp_path / "training.json"
    subprocess.run([sys.executable, BENCHMARK, "--lengths", "256", "--repeats", "2", "--out", out], check=True)
    cells = json.loads(out.read_text())["results"]["rows"]
    assert [(cell["length"], cell["side"]) for cell in cells] == [
        (256, side) for side in ("plain", "dual_stream", "sdpa")
    ]
    for cell in cells:
        assert cell["times_plain"] == cell["seconds_per_step"]["median"] / cells[0]["seconds_per_step"]["median"]


def test_the_documented_numbers_are_the_recorded_ones():
    recorded = json.loads((REPOSITORY / "benchmarks" / "results" / "training.json").read_text())
    documented = (REPOSITORY / "docs" / "train.md").read_text()
    cells = {(cell["length"], cell["side"]): cell for cell in recorded["results"]["rows"]}
    for length in (512, 1024, 2048, 4096):
        plain, dual, dense = (cells[length, side] for side in ("plain", "dual_stream", "sdpa"))
        seconds = [f"{cell['seconds_per_step']['median']:.2f}" for cell in (plain, dual)]
        times = [f"{cell['times_plain']:.2f}" for cell in (dual, dense)]
        megabytes = [f"{cell['bytes'] / 1e6:.0f}" for cell in (plain, dual, dense)]
        assert "| " + " | ".join([str(length), *seconds, *times, *megabytes]) + " |" in documented

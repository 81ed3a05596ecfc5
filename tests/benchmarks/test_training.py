"""The benchmark of training trains all sides on the same tokens and says how memory grows."""

import json
import subprocess
import sys

import pytest
from helpers import REPOSITORY

SIDES = ["plain", "dual_stream", "sdpa"]


@pytest.mark.slow
def test_the_benchmark_writes_its_report(tmp_path):
    command = [sys.executable, REPOSITORY / "benchmarks" / "training.py", "--lengths", "256", "--repeats", "2"]
    output = subprocess.run(
        [*command, "--out", tmp_path / "training.json"], check=True, capture_output=True, text=True
    )
    report = json.loads((tmp_path / "training.json").read_text())
    assert report.keys() == {"command", "commit", "versions", "device", "threads", "results"}
    assert report["results"]["model"]["vocab_size"] == 8192 and report["results"]["dtype"] == "float32"
    cells = report["results"]["rows"]
    assert [(cell["length"], cell["side"]) for cell in cells] == [(256, side) for side in SIDES]
    for cell in cells:
        seconds = cell["seconds_per_step"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert cell["times_plain"] == seconds["median"] / cells[0]["seconds_per_step"]["median"]
        assert cell["bytes"] > 256 * 8192 * 4  # the logits; in the two streams more than 256 queries have a target
    assert output.stdout.count("\n| 256 |") == len(cells)


@pytest.fixture
def benchmark(load_benchmark):
    return load_benchmark("training")


def test_both_sides_train_on_the_same_tokens(benchmark):
    plain, dual = benchmark.batch_of(64, "plain"), benchmark.batch_of(64, "dual_stream")
    assert dual["input_ids"].shape == (1, 128)
    assert dual["input_ids"][:, :64].equal(plain["input_ids"])
    assert (plain["labels"] != -100).sum() == 48 and (dual["targets"][:, :64] != -100).sum() == 48
    assert dual["target_weights"].sum().item() == pytest.approx(1)


RECORDED = json.loads((REPOSITORY / "benchmarks" / "results" / "training.json").read_text())


def test_the_recorded_training_is_within_its_bounds():
    cells = [cell for cell in RECORDED["results"]["rows"] if cell["side"] == "dual_stream"]
    assert [cell["length"] for cell in cells] == [512, 1024, 2048, 4096]
    assert all(cell["times_plain"] <= 2.3 for cell in cells)
    assert all(cell["memory_exponent"] < 1.15 for cell in cells[1:])


def test_the_documented_numbers_are_the_recorded_ones():
    documented = (REPOSITORY / "docs" / "train.md").read_text()
    cells = {(cell["length"], cell["side"]): cell for cell in RECORDED["results"]["rows"]}
    for length in (512, 1024, 2048, 4096):
        plain, dual, dense = (cells[length, side] for side in ("plain", "dual_stream", "sdpa"))
        seconds = [f"{cell['seconds_per_step']['median']:.2f}" for cell in (plain, dual)]
        times = [f"{cell['times_plain']:.2f}" for cell in (dual, dense)]
        megabytes = [f"{cell['bytes'] / 1e6:.0f}" for cell in (plain, dual, dense)]
        assert "| " + " | ".join([str(length), *seconds, *times, *megabytes]) + " |" in documented

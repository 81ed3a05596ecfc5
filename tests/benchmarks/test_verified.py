"""The benchmarks of verified decoding run, and texts part only where two scores are equal but for rounding."""

import json

import pytest
from helpers import REPOSITORY

from examples.demo.tasks import KINDS

RESULTS = REPOSITORY / "benchmarks" / "results"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more", "num_results"),
    [
        ("verified_variants", ["--rounds", "1"], 6 * 6),
        ("verified_precision", [], 6 * 2),
        ("verified_drafts", [], 6 * 2),
    ],
)
def test_a_benchmark_writes_what_it_prints(run, load_benchmark, capsys, name, more, num_results):
    report = run(name, "--num-examples", 1, *more)
    assert len(report["results"]) == num_results and report["num_examples"] == 1
    assert {measured["kind"] for measured in report["results"]} == set(KINDS)
    assert load_benchmark(name).table(report["results"]) in capsys.readouterr().out


def test_recorded_texts_part_in_float32_only_where_two_scores_are_equal_but_for_rounding():
    results = json.loads((RESULTS / "verified_precision.json").read_text())["results"]
    assert all(max(measured["gaps"], default=0) < 1e-4 for measured in results if measured["dtype"] == "float32")

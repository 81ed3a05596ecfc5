"""The benchmarks of verified decoding run, and their numbers stand where people read them."""

import importlib
import json
import sys

import pytest
from helpers import REPOSITORY

from wedlm.demo.tasks import KINDS

RESULTS = REPOSITORY / "benchmarks" / "results"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    names = ("verified_variants", "verified_precision", "verified_drafts")
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more", "num_rows"),
    [
        ("verified_variants", ["--rounds", "1"], 6 * 10),
        ("verified_precision", [], 6 * 2),
        ("verified_drafts", [], 6 * 2),
    ],
)
def test_a_benchmark_writes_what_it_prints(benchmark, monkeypatch, capsys, tmp_path, name, more, num_rows):
    out = tmp_path / "out.json"
    module = benchmark(name)
    monkeypatch.setattr(sys, "argv", [f"{RESULTS.parent}/{name}.py", "--num-examples", "1", *more, "--out", str(out)])
    module.main()
    report = json.loads(out.read_text())
    assert len(report["results"]) == num_rows and report["num_examples"] == 1
    assert {row["kind"] for row in report["results"]} == set(KINDS)
    assert module.table(report["results"]) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "page", "num_examples"),
    [
        ("verified_variants", "benchmarks/RESULTS.md", 10),
        ("verified_drafts", "benchmarks/RESULTS.md", 20),
        ("verified_precision", "docs/generate.md", 1000),
    ],
)
def test_a_page_shows_the_recorded_numbers(benchmark, name, page, num_examples):
    report = json.loads((RESULTS / f"{name}.json").read_text())
    assert report["num_examples"] >= num_examples
    assert benchmark(name).table(report["results"]) in (REPOSITORY / page).read_text(encoding="utf-8")


def test_recorded_texts_part_in_float32_only_where_two_scores_are_equal_but_for_rounding():
    rows = json.loads((RESULTS / "verified_precision.json").read_text())["results"]
    assert all(max(row["gaps"], default=0) < 1e-4 for row in rows if row["dtype"] == "float32")

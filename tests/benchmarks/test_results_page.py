"""The pages show the numbers that were recorded."""

import json
import re

import pytest
from helpers import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = (REPOSITORY / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        ("serving", "serving"), ("vllm_speed", "vllm_speed"), ("vllm_speed_four", "vllm_speed"), ("fused", "fused"),
        ("fused_1b", "fused"),
    ],
)  # fmt: skip
def test_the_page_shows_the_recorded_numbers(load_benchmark, name, benchmark):
    report = json.loads((RESULTS / f"{name}.json").read_text())
    assert load_benchmark(benchmark).table(report["results"]) in PAGE
    assert f"python {report['command'].removeprefix('python ')}" in PAGE


def test_other_tables_show_the_recorded_numbers(load_benchmark):
    fused, vllm = (json.loads((RESULTS / f"{name}.json").read_text())["results"] for name in ("fused", "vllm_speed"))
    assert load_benchmark("fused").speed_table(fused) in PAGE
    page = (REPOSITORY / "docs" / "vllm.md").read_text(encoding="utf-8")
    assert load_benchmark("vllm_speed").accepted_table(vllm) in page


def test_the_page_names_the_files_of_trees_with_changes():
    (told,) = (paragraph for paragraph in PAGE.split("\n\n") if "+changes" in paragraph)
    changed = {
        path.name for path in RESULTS.glob("*.json") if json.loads(path.read_text())["commit"].endswith("+changes")
    }
    assert set(re.findall(r"`(\w+\.json)`", told)) == changed

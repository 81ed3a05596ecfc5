"""The pages show the numbers that were recorded."""

import json
import re

import pytest
from helpers import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        ("serving", "serving"), ("vllm_speed", "vllm_speed"), ("vllm_speed_four", "vllm_speed"), ("fused", "fused"),
        ("fused_1b", "fused"),
    ],
)  # fmt: skip
def test_the_page_shows_the_recorded_numbers(load_benchmark, name, benchmark):
    report = json.loads((RESULTS / f"{name}.json").read_text())
    module = load_benchmark(benchmark)
    page = (REPOSITORY / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert module.table(report["results"]) in page
    assert f"python {report['command'].removeprefix('python ')}" in page
    assert not report["commit"].endswith("+changes")


def test_the_page_shows_the_recorded_speeds_of_fused_models(load_benchmark):
    results = json.loads((RESULTS / "fused.json").read_text())["results"]
    page = (REPOSITORY / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert load_benchmark("fused").speed_table(results) in page
    steps = results["steps"]
    for dtype in steps:
        floor = steps[dtype]["floor"]["milliseconds"]["1"]["median"]
        for tokens in ("1", "8"):
            assert f"{steps[dtype]['fused']['milliseconds'][tokens]['median'] / floor:.2f}" in page


def test_the_page_of_vllm_shows_the_recorded_drafts(load_benchmark):
    report = json.loads((RESULTS / "vllm_speed.json").read_text())
    page = (REPOSITORY / "docs" / "vllm.md").read_text(encoding="utf-8")
    assert load_benchmark("vllm_speed").accepted_table(report["results"]) in page


def test_the_page_names_the_files_of_trees_with_changes():
    page = (REPOSITORY / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    (told,) = (paragraph for paragraph in page.split("\n\n") if "+changes" in paragraph)
    changed = {
        path.name for path in RESULTS.glob("*.json") if json.loads(path.read_text())["commit"].endswith("+changes")
    }
    assert set(re.findall(r"`(\w+\.json)`", told)) == changed

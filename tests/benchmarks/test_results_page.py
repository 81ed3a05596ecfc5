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
        ("decode", "decode"), ("decode_window8", "decode"), ("step", "step"), ("step_long", "step"),
        ("step_qwen3", "step"), ("overhead", "overhead"), ("memory", "memory"),
        ("verified_speed", "verified_speed"), ("serving", "serving"), ("vllm_speed", "vllm_speed"),
        ("vllm_speed_four", "vllm_speed"), ("fused", "fused"), ("fused_1b", "fused"),
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
    steps, operators = results["steps"], results["operators"]
    for dtype in steps:
        floor = steps[dtype]["floor"]["milliseconds"]["1"]["median"]
        for tokens in ("1", "8"):
            assert f"{steps[dtype]['fused']['milliseconds'][tokens]['median'] / floor:.2f}" in page
    assert all(re.search(rf"\b{number}\b", page) for counts in operators.values() for number in counts.values())


def test_the_page_of_vllm_shows_the_recorded_drafts(load_benchmark):
    report = json.loads((RESULTS / "vllm_speed.json").read_text())
    page = (REPOSITORY / "docs" / "vllm.md").read_text(encoding="utf-8")
    assert load_benchmark("vllm_speed").accepted_table(report["results"]) in page


@pytest.mark.parametrize(
    ("name", "page", "num_examples"),
    [
        ("verified_variants", "benchmarks/RESULTS.md", 10),
        ("verified_drafts", "benchmarks/RESULTS.md", 20),
        ("verified_precision", "docs/generate.md", 1000),
    ],
)
def test_a_page_shows_the_recorded_numbers_of_verified_decoding(load_benchmark, name, page, num_examples):
    report = json.loads((RESULTS / f"{name}.json").read_text())
    assert report["num_examples"] >= num_examples
    assert load_benchmark(name).table(report["results"]) in (REPOSITORY / page).read_text(encoding="utf-8")


def test_the_page_names_the_files_of_trees_with_changes():
    page = (REPOSITORY / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    (told,) = (paragraph for paragraph in page.split("\n\n") if "+changes" in paragraph)
    changed = {
        path.name for path in RESULTS.glob("*.json") if json.loads(path.read_text())["commit"].endswith("+changes")
    }
    assert set(re.findall(r"`(\w+\.json)`", told)) == changed

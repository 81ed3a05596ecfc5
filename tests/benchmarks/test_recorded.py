"""The pages show the numbers that were recorded, and the records are of a commit and of what is published."""

import hashlib
import json
import re

import pytest
from helpers import REPOSITORY

RESULTS = REPOSITORY / "benchmarks" / "results"
PAGE = (REPOSITORY / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
ADAPTER = REPOSITORY / "hub_card" / "smollm2-135m-adapter" / "adapter_model.safetensors"


def recorded(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        ("serving", "serving"), ("vllm_speed", "vllm_speed"), ("vllm_speed_four", "vllm_speed"), ("fused", "fused"),
        ("fused_1b", "fused"),
    ],
)  # fmt: skip
def test_the_page_shows_the_recorded_numbers(load_benchmark, name, benchmark):
    report = recorded(name)
    assert load_benchmark(benchmark).table(report["results"]) in PAGE
    assert f"python {report['command'].removeprefix('python ')}" in PAGE


def test_other_tables_show_the_recorded_numbers(load_benchmark):
    assert load_benchmark("fused").speed_table(recorded("fused")["results"]) in PAGE
    page = (REPOSITORY / "docs" / "vllm.md").read_text(encoding="utf-8")
    assert load_benchmark("vllm_speed").accepted_table(recorded("vllm_speed")["results"]) in page
    page = (REPOSITORY / "docs" / "train.md").read_text(encoding="utf-8")
    cells = {(cell["length"], cell["side"]): cell for cell in recorded("training")["results"]["rows"]}
    for length in (512, 1024, 2048, 4096):
        plain, dual, dense = (cells[length, side] for side in ("plain", "dual_stream", "sdpa"))
        seconds = [f"{cell['seconds_per_step']['median']:.2f}" for cell in (plain, dual)]
        times = [f"{cell['times_plain']:.2f}" for cell in (dual, dense)]
        megabytes = [f"{cell['bytes'] / 1e6:.0f}" for cell in (plain, dual, dense)]
        assert "| " + " | ".join([str(length), *seconds, *times, *megabytes]) + " |" in page


def test_the_page_names_the_files_of_trees_with_changes():
    (told,) = (paragraph for paragraph in PAGE.split("\n\n") if "+changes" in paragraph)
    changed = {path.name for path in RESULTS.glob("*.json") if recorded(path.stem)["commit"].endswith("+changes")}
    assert set(re.findall(r"`(\w+\.json)`", told)) == changed


def test_the_evidence_is_written_from_the_records(load_benchmark):
    page = (REPOSITORY / "docs" / "EVIDENCE.md").read_text(encoding="utf-8")
    assert load_benchmark("evidence").page() == page
    plots = re.findall(r"!\[.*\]\((.*)\)", page)
    assert sorted(plots) == sorted(f"evidence/{path.name}" for path in (REPOSITORY / "docs" / "evidence").iterdir())


def test_the_records_are_of_commits_and_of_what_is_published(load_benchmark):
    evidence, training = load_benchmark("evidence"), load_benchmark("real_training")
    weights = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())["weights_sha256"]
    commits = []
    for name in evidence.ablations.FIGURES:
        report = evidence.recorded(evidence.RESULTS / evidence.ablations.file_of(name))
        assert report["weights_sha256"] == weights
        commits.append(report["commit"])
    for file in (*load_benchmark("evidence_real").RECORDS.glob("*.json"), training.FILE):
        report = json.loads(file.read_text(encoding="utf-8"))
        assert report["adapter_sha256"] == hashlib.sha256(ADAPTER.read_bytes()).hexdigest()
        commits.append(report["commit"])
    commits += [origin["commit"] for origin in report["results"]["training"]["origins"]]
    assert all(len(commit) == 40 for commit in commits), "without changes"

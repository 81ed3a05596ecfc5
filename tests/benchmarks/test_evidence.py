"""docs/EVIDENCE.md is written from the recorded files, and its plots lie beside it."""

import json
import re

import pytest
from helpers import REPOSITORY

from wedlm.evaluation.decodings import BASELINE

PAGE = (REPOSITORY / "docs" / "EVIDENCE.md").read_text(encoding="utf-8")


@pytest.fixture
def evidence(load_benchmark):
    return load_benchmark("evidence")


def test_the_page_is_written_from_the_files(evidence):
    assert evidence.page() == PAGE


def test_the_figures_are_of_a_commit_and_of_this_checkpoint(evidence):
    weights = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())["weights_sha256"]
    for name, figure in evidence.ablations.FIGURES.items():
        report = evidence.recorded(evidence.RESULTS / evidence.ablations.file_of(name))
        assert len(report["commit"]) == 40, "a commit, without changes"
        assert report["weights_sha256"] == weights and report["num_questions"] >= 100
        assert report["command"] == f"python benchmarks/ablations.py {name}"
        assert set(report["results"]["all"]) == {BASELINE, *figure.decodings}


def test_plots_lie_beside_the_page():
    plots = re.findall(r"!\[.*\]\((.*)\)", PAGE)
    assert sorted(plots) == sorted(f"evidence/{path.name}" for path in (REPOSITORY / "docs" / "evidence").iterdir())
    assert all((REPOSITORY / "docs" / plot).read_bytes().startswith(b"\x89PNG") for plot in plots)

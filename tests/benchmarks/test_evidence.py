"""docs/EVIDENCE.md is written from the recorded files, and its plots lie beside it."""

import json
import re

from helpers import REPOSITORY

PAGE = (REPOSITORY / "docs" / "EVIDENCE.md").read_text(encoding="utf-8")


def test_the_page_is_written_from_the_files(load_benchmark):
    assert load_benchmark("evidence").page() == PAGE
    plots = re.findall(r"!\[.*\]\((.*)\)", PAGE)
    assert sorted(plots) == sorted(f"evidence/{path.name}" for path in (REPOSITORY / "docs" / "evidence").iterdir())


def test_the_figures_are_of_a_commit_and_of_this_checkpoint(load_benchmark):
    evidence = load_benchmark("evidence")
    weights = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())["weights_sha256"]
    for name in evidence.ablations.FIGURES:
        report = evidence.recorded(evidence.RESULTS / evidence.ablations.file_of(name))
        assert len(report["commit"]) == 40, "a commit, without changes"
        assert report["weights_sha256"] == weights

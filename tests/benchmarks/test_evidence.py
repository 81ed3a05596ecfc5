"""docs/EVIDENCE.md is written from the recorded files, and its plots lie beside it."""

import json
import re

import pytest
from helpers import REPOSITORY

from wedlm.evaluation.decodings import BASELINE

NAMES = ("threshold", "penalty", "streaming-blockwise", "pareto", "window", "kinds")


@pytest.fixture
def evidence(load_benchmark):
    return load_benchmark("evidence")


def test_the_page_is_written_from_the_files(evidence):
    """The numbers on it are from the files as well, except for the paper's."""
    assert (REPOSITORY / "docs" / "EVIDENCE.md").read_text(encoding="utf-8") == evidence.page()
    for described in evidence.SECTIONS:
        assert not re.findall(r"\d", "".join(described.why.values())), "a reason has no number of its own"
    assert {described.name for described in evidence.SECTIONS} >= {*NAMES, "block-size", "inside-block"}


def test_the_files_are_of_a_commit_and_of_this_checkpoint(evidence):
    weights = json.loads((REPOSITORY / "hub_card" / "wedlm-demo" / "report.json").read_text())["weights_sha256"]
    for name in NAMES:
        report = evidence.report_of(name)
        assert len(report["commit"]) == 40, "a commit, without changes"
        assert report["weights_sha256"] == weights and report["num_questions"] >= 100
        assert report["command"] == f"python benchmarks/ablations.py {name}"
        assert set(report["results"]["all"]) == {BASELINE, *evidence.ablations.FIGURES[name].decodings}


def test_the_verdicts_are_counted(evidence):
    page = (REPOSITORY / "docs" / "EVIDENCE.md").read_text(encoding="utf-8")
    given = re.findall(r"^\*\*(Agrees|Differs|Cannot be judged)\*\*:", page, re.MULTILINE)
    agree, differ, cannot = map(given.count, ("Agrees", "Differs", "Cannot be judged"))
    assert f"Of {len(given)} findings {agree} agree with the paper's, {differ} differ, and {cannot} cannot" in page
    rows = re.findall(r"^\| \[(.+)\]\(#(.+)\) \| (.+) \|$", page, re.MULTILINE)
    assert [verdict for *_, verdict in rows] == [verdict.lower() for verdict in given]
    assert all(f"## {title}\n" in page and place == title.lower().replace(" ", "-") for title, place, _ in rows)


def test_plots_lie_beside_the_page(evidence):
    page = (REPOSITORY / "docs" / "EVIDENCE.md").read_text(encoding="utf-8")
    plots = re.findall(r"!\[.*\]\((.*)\)", page)
    assert len(plots) > len(evidence.SECTIONS), "also that of the acceptance ratio"
    assert sorted(plots) == sorted(f"evidence/{path.name}" for path in (REPOSITORY / "docs" / "evidence").iterdir())
    assert all((REPOSITORY / "docs" / plot).read_bytes().startswith(b"\x89PNG") for plot in plots)


def test_a_number_without_a_reason_is_said_to_have_none(evidence):
    described = evidence.SECTIONS[0]._replace(judge=lambda results: evidence.Finding("Agrees", "unheard of", "It is."))
    text = evidence.section(described, {**evidence.report_of(described.name), "commit": None})
    assert f"It is.\n\n**Agrees**: {evidence.NO_REASON}" in text and "of no commit" in text

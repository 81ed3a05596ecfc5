"""Lists of pages, targets and versions agree with what is there."""

import re

import pytest
import yaml
from helpers import REPOSITORY

import wedlm

DOCS = REPOSITORY / "docs"
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def test_the_index_lists_every_page_once():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([\w.]+)\]\(\1\) \| .+ \|$", index, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md") if page.name != "index.md")


@pytest.mark.parametrize("page", ["docs/index.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(page):
    file = REPOSITORY / page
    links = re.findall(r"\]\(([^)#:]+)[^)]*\)", file.read_text(encoding="utf-8"))
    assert all((file.parent / link).exists() for link in links), links


def test_contributing_lists_every_target_of_make():
    contributing = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `make ([\w-]+)", contributing, re.MULTILINE))
    assert listed == TARGETS
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS


def test_the_workflow_and_ci_call_targets_of_make():
    workflow = (REPOSITORY / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    called = set(re.findall(r'"([\w-]+)"', job["strategy"]["matrix"]["target"]))
    assert called == {"lint", "test-all", "test-slow"} <= TARGETS
    ci = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^make ([\w-]+)$", ci, re.MULTILINE) == ["lint", "test-all"]


def test_versions_agree():
    released, date = re.search(
        r"^## ([\d.]+) \((\d{4}-\d\d-\d\d)\)$", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    ).groups()
    (stated,) = re.findall(r'^    version="([\d.]+)",$', (REPOSITORY / "setup.py").read_text(), re.MULTILINE)
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert released == stated == wedlm.__version__ == citation["version"]
    assert citation["date-released"] == date
    assert citation["preferred-citation"]["url"].endswith("/2512.22737")


def test_the_log_is_sorted_by_topic_and_dated():
    log = (REPOSITORY / "DEVLOG.md").read_text(encoding="utf-8")
    assert re.findall(r"/(?:tmp|work|root|home)/\S*", log) == [], "a folder of one machine"
    topics = re.split(r"^## .+\n", log, flags=re.MULTILINE)[1:]
    assert len(topics) > 5
    for topic in topics:
        entries = topic.strip().split("\n\n")
        dates = [re.match(r"(\d{4}-\d\d-\d\d) — [A-Z`a-z]", entry)[1] for entry in entries]
        assert dates == sorted(dates)

"""Lists of pages, targets and versions agree with what is there, and code on pages parses."""

import ast
import re
import shlex
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import pytest
import yaml
from helpers import REPOSITORY
from readme_blocks import blocks_of, parse

import wedlm
from wedlm.generation.package import NEWEST_TRANSFORMERS, OLDEST_TRANSFORMERS

DOCS = REPOSITORY / "docs"
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def test_the_index_lists_every_page_of_the_site_once():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([\w.-]+)\]\(\1\) \| .+ \|$", index, re.MULTILINE)
    site = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
    left_out = {"index.md", *site["exclude_docs"].split()}
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md") if page.name not in left_out)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/decisions.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(page):
    file = REPOSITORY / page
    links = re.findall(r"\]\((?!https?:|\.\./\.\./actions)([^)#]+)", file.read_text(encoding="utf-8"))
    assert all((file.parent / link).exists() for link in links), links


def test_contributing_lists_every_target_of_make():
    contributing = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `make ([\w-]+)", contributing, re.MULTILINE))
    assert listed == TARGETS
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert set(phony.split()) == TARGETS


def test_versions_agree():
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    newest, state = re.search(r"^## ([\d.]+) \((unreleased|\d{4}-\d\d-\d\d)\)$", changelog, re.MULTILINE).groups()
    (stated,) = re.findall(r'^    version="(.+)",$', (REPOSITORY / "setup.py").read_text(), re.MULTILINE)
    assert stated == wedlm.__version__ == newest + (".dev0" if state == "unreleased" else "")
    released, date = re.search(r"^## ([\d.]+) \((\d{4}-\d\d-\d\d)\)$", changelog, re.MULTILINE).groups()
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["date-released"]) == (released, date)
    assert citation["preferred-citation"]["url"].endswith("/2512.22737")


def test_the_versions_of_transformers_that_were_tested_are_those_of_the_environments():
    (promised,) = re.findall(r'"transformers>=([\d.]+),<6"', (REPOSITORY / "setup.py").read_text())
    pins = [
        re.search(r"^transformers==(.+)$", (REPOSITORY / file).read_text(), re.MULTILINE)[1]
        for file in ("constraints-oldest.txt", "constraints.txt")
    ]
    assert [OLDEST_TRANSFORMERS, NEWEST_TRANSFORMERS] == [pin.rpartition(".")[0] for pin in pins]
    assert promised == OLDEST_TRANSFORMERS
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert all(pin in readme for pin in pins)


@pytest.mark.parametrize("address", ["", "https://example.org/o/wedlm"])
def test_links_of_the_site_out_of_its_pages_lead_into_the_repository(address):
    spec = spec_from_file_location("site_hook", DOCS / "site.py")
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    hook.ADDRESS = address
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/train.md"))
    text = "[rows](../train.md), [card](../../hub_card/wedlm-demo/README.md#speed), ![film](../../docs/race.gif)"
    repository = {
        "": "card (`hub_card/wedlm-demo/README.md` in the repository), film",
        "https://example.org/o/wedlm": (
            "[card](https://example.org/o/wedlm/blob/main/hub_card/wedlm-demo/README.md#speed), "
            "![film](https://example.org/o/wedlm/raw/main/docs/race.gif)"
        ),
    }
    assert hook.on_page_markdown(text, page) == f"[rows](../train.md), {repository[address]}"


PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "```" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_and_commands_of_every_page_parse(page):
    for block in blocks_of(page.read_text(encoding="utf-8")):
        if block.language == "python":
            ast.parse(block.code)
        for line in block.lines() if block.language == "bash" else []:
            if line.startswith("wedlm "):
                parse(shlex.split(line, comments=True))

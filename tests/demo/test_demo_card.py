"""The demo's card and the table of the project's README.md say what its report says."""

import json

from helpers import REPOSITORY
from huggingface_hub import ModelCard

from examples.demo.card import METADATA, goals_table
from examples.demo.report import WIDE
from examples.demo.tasks import KINDS, check, held_out_examples
from wedlm.checkpoints.demo_folder import DEMO_FOLDER

REPORT = json.loads((DEMO_FOLDER / "report.json").read_text(encoding="utf-8"))
CARD = ModelCard.load(DEMO_FOLDER / "README.md")


def test_its_metadata_are_the_hubs():
    assert CARD.data.to_dict() == METADATA | {
        "library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["wedlm", *METADATA["tags"]]
    }  # fmt: skip


def test_goals_stand_in_the_docs_and_likelihoods_on_the_card():
    page = (REPOSITORY / "docs" / "figures.md").read_text(encoding="utf-8")
    assert goals_table(REPORT) in page
    lines = [line for line in page.splitlines() if f"tokens per pass, {WIDE} |" in line]
    for line, (kind, results) in zip(lines, REPORT["results"].items(), strict=True):
        reached = results[WIDE]["tokens_per_forward"]
        assert line.startswith(f"| {kind.replace('_', ' ')}: ") and f" | {reached:.3g} | " in line
        assert line not in CARD.text
    for kind, nll in REPORT["held_out_nll"].items():
        assert f"\n| {kind.replace('_', ' ')} | {nll:.3f} |\n" in CARD.text


def test_the_answers_that_the_card_shows_are_right():
    for shown in REPORT["examples"]:
        (asked,) = (each for kind in KINDS for each in held_out_examples(kind, 1) if each.prompt == shown["prompt"])
        assert check(asked, shown["text"]), shown["text"]

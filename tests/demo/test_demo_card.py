"""The demo's card and the table of the project's README.md say what its report says."""

import json

from huggingface_hub import ModelCard

from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.demo.card import METADATA, content_of, overview

REPORT = json.loads((DEMO_FOLDER / "report.json").read_text(encoding="utf-8"))
CARD = ModelCard.load(DEMO_FOLDER / "README.md")


def test_its_metadata_are_the_hubs():
    assert CARD.data.to_dict() == METADATA | {
        "library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["wedlm", *METADATA["tags"]]
    }  # fmt: skip


def test_goals_and_likelihoods_are_the_reports():
    for goal in REPORT["goals"]:
        reached = "met" if goal["met"] else "**missed**"
        line = f"| {goal['goal'].replace('_', ' ')} | {goal['target']:g} | {goal['reached']:.3g} | {reached} |"
        assert line in CARD.text, line
    for kind, nll in REPORT["held_out_nll"].items():
        assert f"\n| {kind.replace('_', ' ')} | {nll:.3f} |\n" in CARD.text


def test_the_sections_are_there():
    titles = [line.removeprefix("## ") for line in CARD.text.splitlines() if line.startswith("## ")]
    own = [section.title for section in content_of(DEMO_FOLDER).sections]
    assert titles == ["Use", "Decoding", "Evaluation", "Training", *own, "Limits", "Licence", "Citation"]
    assert "\n\n\n" not in CARD.text and max(map(len, CARD.text.splitlines())) < 160


def test_a_line_of_the_overview_is_a_kind():
    results = {"streaming": 0.5, "verified": 0.75, "autoregressive": 0.75}
    report = {
        "results": {
            "word_problems": {
                decoding: {
                    "accuracy": share, "tokens_per_forward": 10 * share, "times_autoregressive": {"median": 4 * share}
                }
                for decoding, share in results.items()
            }
        }
    }  # fmt: skip
    head, _, line = overview(report).splitlines()
    assert line == "| word problems | 75.0 % | 50.0 % | 5.0 | 7.5 | 2.0× | 3.0× |"
    assert head.count("|") == line.count("|") and "right: streaming" in head

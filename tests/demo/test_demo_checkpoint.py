"""The committed demo checkpoint: complete, loadable anywhere, and as its card says."""

import json
import re

import pytest
from helpers import REPOSITORY, load
from transformers import AutoTokenizer

from examples.demo.card import card
from examples.demo.example import Example
from examples.demo.report import EXAMPLES, shown
from examples.demo.tasks import batch_of
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.evaluation.provenance import weights_digest

REPORT, TRAINING = (
    json.loads((DEMO_FOLDER / name).read_text(encoding="utf-8")) for name in ("report.json", "training.json")
)


@pytest.fixture(scope="module")
def demo():
    return load(DEMO_FOLDER), AutoTokenizer.from_pretrained(DEMO_FOLDER)


def test_the_card_shows_what_it_writes(demo):
    model, tokenizer = demo
    assert [shown(model, tokenizer, kind) for kind in EXAMPLES] == REPORT["examples"]


def test_the_card_is_written_from_the_files_beside_it():
    """This holds for every number on it."""
    assert (DEMO_FOLDER / "README.md").read_text(encoding="utf-8") == card(DEMO_FOLDER)


def test_the_files_are_about_this_checkpoint(demo):
    assert REPORT["weights_sha256"] == weights_digest(DEMO_FOLDER)
    model, _ = demo
    assert TRAINING["parameters"] == model.num_parameters()
    for written in (REPORT, TRAINING):
        assert len(written["commit"]) == 40, "a commit, without changes"
        assert {"torch", "transformers", "wedlm", "python"} == set(written["versions"])
        assert written["device"] and re.match(r"python -m (wedlm|examples)\.demo\.", written["command"])


SHOWN = {
    "Count by 5 from 10 to 60.": "10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60.",
    "Count down by 1 from 20 to 10.": "20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10.",
    "Solve 3x + 7 = 22 for x.": "Answer: x = 5",
    "Solve 3x + 7 = 22.": "Answer: x = 5",
    "Tom has 24 marbles. He buys 30 more. He gives 12 to Anna. How many marbles does Tom have now?": "Answer: 42",
}
PAGES = ("README.md", "Makefile", "wedlm/commands/cli.py", "docs/serve.md")


@pytest.mark.parametrize("decoding", ["streaming", "verified"])
def test_the_questions_that_we_show_are_answered_right(demo, decoding):
    pages = "".join((REPOSITORY / page).read_text("utf-8") for page in PAGES)
    assert set(re.findall(r'"((?:Count|Solve|Tom) [^"]*[.?])"', pages)) == set(SHOWN)
    model, tokenizer = demo
    for question, right in SHOWN.items():
        inputs = batch_of(tokenizer, [Example("", question, "", "")], model.device)
        output = model.generate(**inputs, decoding=decoding, max_new_tokens=160)[0, inputs["input_ids"].shape[1] :]
        assert tokenizer.decode(output, skip_special_tokens=True).split("\n")[-1] == right


def test_its_default_decoding_is_one_that_its_report_shows_to_lose_nothing(demo):
    decoding = demo[0].generation_config.decoding
    assert decoding == "verified"
    assert all(results[decoding]["same_text_as_autoregressive"] == 1 for results in REPORT["results"].values())

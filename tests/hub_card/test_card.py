"""The generator of cards: whatever a card is given, it says, and it reads back the same."""

import ast
from dataclasses import replace

import pytest
from exports import result_of, snippet_of, write_evaluation
from huggingface_hub import ModelCard
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.checkpoints.errors import CheckpointError
from wedlm.hub_card.card import make_card
from wedlm.hub_card.export import card_content
from wedlm.hub_card.metadata import CardOptions


@example(title="a\x85b", prompt="c", repository="d", label="e\x85f")
@property_settings(15, deadline=None)
@given(title=st.text(), prompt=st.text(min_size=1), repository=st.text(min_size=1), label=st.text())
def test_whatever_is_said_the_card_says_it(read, title, prompt, repository, label):
    """The snippet has the same strings, the metadata is the same when it is read again, and the title is one line."""
    folder = read.plan.folder.parent
    evaluation = write_evaluation(folder / "eval.json", read.plan.folder, [result_of(title=title, decoding=label)])
    options = CardOptions("mit", title=title, prompt=prompt, evaluation_files=[evaluation])
    card = make_card(card_content(read, options, repository))
    card.save(folder / "README.md")
    assert ModelCard.load(folder / "README.md").data.to_dict() == card.data.to_dict()
    strings = [node.value for node in ast.walk(ast.parse(snippet_of(card.text))) if isinstance(node, ast.Constant)]
    assert repository in strings and prompt in strings
    heading = card.text.split("\n")[0]
    assert heading.startswith("# ") and "|" not in heading.replace("\\|", "")


def test_metadata_that_changes_when_it_is_read_is_refused(read):
    content = card_content(read, CardOptions("mit"), "name")
    with pytest.raises(CheckpointError, match="reads the metadata of the card differently"):
        make_card(replace(content, metadata={"license": "mit", "language": "e\x85n"}))

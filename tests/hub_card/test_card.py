"""The generator of cards: whatever a card is given, it says, and it reads back the same."""

import ast

import pytest
from exports import result_of, snippet_of, write_evaluation
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import property_settings

from wedlm.hub_card.card import check_card, make_card
from wedlm.hub_card.export import card_content
from wedlm.hub_card.metadata import card_data
from wedlm.hub_card.options import CardOptions, ExportError


@example(title="a\x85b", prompt="c", repository="d", label="e\x85f")
@property_settings(15, deadline=None)
@given(title=st.text(), prompt=st.text(min_size=1), repository=st.text(min_size=1), label=st.text())
def test_whatever_is_said_the_card_says_it(read, title, prompt, repository, label):
    """The snippet has the same strings, the metadata is the same when it is read again, and the title is one line."""
    folder = read.folder.parent
    evaluation = write_evaluation(folder / "eval.json", read.folder, [result_of(title=title, decoding=label)])
    options = CardOptions("mit", title=title, prompt=prompt, evaluation_files=[evaluation])
    card, data = make_card(card_content(read, options, repository))
    card.save(folder / "README.md")
    check_card(folder / "README.md", data)
    strings = [node.value for node in ast.walk(ast.parse(snippet_of(card.text))) if isinstance(node, ast.Constant)]
    assert repository in strings and prompt in strings
    heading = card.text.split("\n")[0]
    assert heading.startswith("# ") and "|" not in heading.replace("\\|", "")


def test_metadata_that_changes_when_it_is_read_is_refused(tmp_path):
    data = card_data({"license": "mit"}, "title", [])
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    with pytest.raises(ExportError, match="is another when it is read again"):
        check_card(tmp_path / "README.md", data)

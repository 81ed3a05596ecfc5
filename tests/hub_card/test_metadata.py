"""The metadata of a card: where it comes from, and what the Hub would refuse."""

import re

import pytest
from exports import readme_with

from wedlm.checkpoints.errors import CheckpointError
from wedlm.hub_card.metadata import CardOptions, card_data, read_metadata


def test_the_command_line_wins_over_the_readme(tmp_path):
    assert read_metadata(tmp_path, CardOptions("mit")) == {"license": "mit"}
    readme_with(
        tmp_path,
        "license: other\nlicense_name: own\nlicense_link: LICENSE\nbase_model: [me/a]\ndatasets: me/d\n"
        "language: [en, de]\ntags: one\nlibrary_name: peft\nwidget: []\nmodel-index: []",
    )
    kept = {
        "license": "other", "license_name": "own", "license_link": "LICENSE", "base_model": "me/a",
        "datasets": ["me/d"], "language": ["en", "de"], "tags": "one",
    }  # fmt: skip
    assert read_metadata(tmp_path, CardOptions()) == kept
    assert card_data(kept, "title", []).to_dict() == {
        **kept, "tags": ["wedlm", "one"], "library_name": "transformers", "pipeline_tag": "text-generation",
    }  # fmt: skip
    given = CardOptions("mit", ["me/b"], ["me/e", "me/f"], ["fr"])
    assert read_metadata(tmp_path, given) == {
        "license": "mit", "base_model": "me/b", "datasets": ["me/e", "me/f"], "language": "fr", "tags": "one",
    }  # fmt: skip


@pytest.mark.parametrize(
    "yaml, options, sentence",
    [
        ("", {}, "There is no licence, neither in "),
        (
            "license: Apache-2.0",
            {},
            "license='Apache-2.0' is not an identifier of the Hub; pass --license with one that is, such",
        ),
        ("license: mit", {"license": "other"}, "The licence 'other' needs a license_name and a license_link; "),
        ("license: mit", {"base_models": ["../out/full"]}, "base_model='../out/full' is not a name on the Hub ("),
        ("license: mit\ndatasets: [3]", {}, "datasets=3 is not a name on the Hub (it is not a string); "),
        ("license: mit\nlanguage: no", {}, "language=False is not a language code; pass --language with one"),
        ("license: [mit", {}, "README.md cannot be read (while parsing"),
    ],
)
def test_metadata_that_the_hub_would_not_take(tmp_path, yaml, options, sentence):
    with pytest.raises(CheckpointError, match=re.escape(sentence)):
        read_metadata(readme_with(tmp_path, yaml), CardOptions(**options))

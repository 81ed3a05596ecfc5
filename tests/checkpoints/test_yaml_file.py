"""YAML of others is read whole or refused."""

import pytest
import yaml

from wedlm.checkpoints.yaml_file import read_yaml

NESTED = "a: " + "[" * 2000
LAUGHS = "a: &a [ha, ha]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_plain_text_is_read_as_yaml_reads_it(tmp_path):
    (tmp_path / "file.yaml").write_text("a: [1, {b: null}]\nc: &name text\n", encoding="utf-8")
    assert read_yaml(tmp_path / "file.yaml") == {"a": [1, {"b": None}], "c": "text"}


@pytest.mark.parametrize(
    ("text", "words"), [(NESTED, "nested too deeply"), (LAUGHS, r"has the alias \*a, whose text")]
)
def test_text_that_would_fill_the_memory_is_refused(tmp_path, text, words):
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(yaml.YAMLError, match=words):
        read_yaml(tmp_path / "file.yaml")

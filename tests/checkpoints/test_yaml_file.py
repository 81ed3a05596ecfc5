"""YAML of others is read whole or refused."""

import pytest
import yaml

from wedlm.checkpoints.yaml_file import read_yaml

NESTED = "a: " + "[" * 2000
LAUGHS = "a: &a [ha, ha]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED_LAUGHS = "a: &a {x: 1}\n" + "\n".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_text_is_read_as_yaml_reads_it(tmp_path):
    text = "a: [1, {b: null}]\nc: &name text\nd: *name\ne: &all {f: 1, g: [*name]}\nh: {<<: *all, f: 2}\n"
    (tmp_path / "file.yaml").write_text(text, encoding="utf-8")
    assert read_yaml(tmp_path / "file.yaml") == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NESTED, "nested too deeply"),
        (LAUGHS, "its aliases stand for so many"),
        (MERGED_LAUGHS, "its aliases stand for so many"),
        ("a: &a [*a]", "stands for a text that holds this alias"),
    ],
)
def test_text_that_would_fill_the_memory_is_refused(tmp_path, text, words):
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(yaml.YAMLError, match=words):
        read_yaml(tmp_path / "file.yaml")

"""Files of results are read into dataclasses, and others are refused."""

from dataclasses import dataclass

import pytest

from wedlm.hub_card.options import ExportError
from wedlm.hub_card.report_file import read_fields, read_report


@dataclass(frozen=True)
class Measured:
    name: str
    value: int | None


def test_a_field_that_may_be_none_may_be_missing():
    assert read_fields(Measured, {"name": "a", "more": 1}) == Measured("a", None)
    for content, words in (
        ([], "Measured is []"), ({"value": 1}, "name is None"), ({"name": "a", "value": "1"}, "value is '1'"),
    ):  # fmt: skip
        with pytest.raises(TypeError) as refused:
            read_fields(Measured, content)
        assert str(refused.value) == words


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "file.json"
    for content, words in (
        ("{", "cannot be read as JSON ("),
        ("[" * 10_000, "cannot be read as JSON (maximum recursion depth"),
        ("{}", "is no file that `wedlm x` wrote (KeyError: 'a'); pass one that is."),
    ):
        path.write_text(content)
        with pytest.raises(ExportError) as refused:
            read_report(path, lambda content: content["a"], "wedlm x")
        assert str(refused.value).startswith(f"{path} {words}")
    path.write_text('{"a": 3}')
    assert read_report(path, lambda content: content["a"], "wedlm x") == 3

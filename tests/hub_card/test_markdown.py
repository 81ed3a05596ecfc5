"""Markdown: text without markup, commands without paths, and tables."""

from wedlm.hub_card.markdown import escaped, number, shown_command, shown_versions, table


def test_text_becomes_one_line_without_markup():
    assert escaped("a |b|\n <c> *d*") == r"a \|b\| \<c\> \*d\*"
    assert shown_command("wedlm  eval\n/home/me/x `y`") == "wedlm eval x 'y'"
    assert shown_versions({"a": "1", "b": "2"}) == "a 1, b 2"
    assert [number(None, 1), number(1234.56, 1)] == ["", "1,234.6"]


def test_empty_columns_of_a_table_go():
    assert table([["a", "b", "c"], ["x", "", "1"], ["", "", ""]]) == "| a | c |\n| --- | ---: |\n| x | 1 |\n|  |  |"

"""docs/troubleshooting.md: each error that it quotes begins as one in the source."""

import ast
import re
from collections.abc import Iterator

from helpers import REPOSITORY
from import_graph import source_files

PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ERRORS = PAGE.partition("\n## Errors by their first words\n")[2]
QUOTES = [
    quote for cell in re.findall(r"^\| (`.+?`) \| ", ERRORS, re.MULTILINE) for quote in re.findall("`(.+?)`", cell)
]
VALUE = None  # a part of a sentence that differs from error to error
LEAST = 6  # letters of the literal part in which a quote ends


def parts_of(node: ast.AST) -> list[str | None]:
    """The literal parts of a string or an f-string, and a VALUE between them."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [part.value if isinstance(part, ast.Constant) else VALUE for part in node.values]


def sentences() -> Iterator[list[str | None]]:
    for path in source_files().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant | ast.JoinedStr):
                yield parts_of(node)


def begins(sentence: list[str | None], quote: str) -> bool:
    """Whether the sentence begins with the quote, for some values; the quote ends within one of its literal parts."""
    for number, part in enumerate(sentence):
        if part is VALUE or len(part) < LEAST or part[:LEAST] not in quote:
            continue
        before = "".join(".+?" if each is VALUE else re.escape(each) for each in sentence[:number])
        for place in range(len(quote) - LEAST + 1):
            if part.startswith(quote[place:]) and re.fullmatch(before, quote[:place], re.DOTALL):
                return True
    return False


def test_the_errors_that_the_page_quotes_are_those_of_the_package():
    known = list(sentences())
    assert QUOTES and [quote for quote in QUOTES if not any(begins(sentence, quote) for sentence in known)] == []


def test_quotes_are_compared_with_the_literal_parts():
    sentence = ["", VALUE, " is not a folder; give ", VALUE, " or nothing at all."]
    for quote in ("x is not a folder", "x is not a folder; give ", "x is not a folder; give a or nothing at"):
        assert begins(sentence, quote), quote
    for quote in (
        "x is",
        " is not a folder",
        "x is a folder",
        "x is not a folder; give a",
        "x is not a folder, give a or nothing at",
    ):
        assert not begins(sentence, quote), quote

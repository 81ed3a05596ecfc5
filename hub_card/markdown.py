"""Text, commands and tables in Markdown."""

import re

from wedlm.hub_card.leaks import without_leaks


def on_one_line(text: object) -> str:
    return " ".join(str(text).split())


def escaped(text: object) -> str:
    """Returns the text on one line without markup, fit for a cell of a table as well."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", on_one_line(text))


def shown_command(command: str) -> str:
    """Returns a command on one line, without absolute paths and secrets."""
    return " ".join(without_leaks(command).replace("`", "'").split())


def shown_versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def table(lines: list[list[str]]) -> str:
    """Returns a table of escaped cells, the head first; columns behind the first are numbers, and empty ones go."""
    columns = [column for column in zip(*lines, strict=True) if any(column[1:])]
    marks = ["---", *["---:"] * (len(columns) - 1)]
    head, *rest = zip(*columns, strict=True)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, marks, *rest))

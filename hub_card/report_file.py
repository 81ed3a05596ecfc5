"""Reads the JSON files that `wedlm eval` and `wedlm train` write, and refuses others."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from wedlm.hub_card.options import ExportError


def read_report(path: Path, parse: Callable[[object], Any], command: str) -> Any:
    """Reads a file and returns what `parse` makes of it.

    Args:
        path (`Path`):
            The file.
        parse (`Callable[[object], Any]`):
            Takes the content, and may raise what wrong content leads to, such as KeyError.
        command (`str`):
            The command that writes such files, for the message of an error.
    """
    content = read_json(path, command)
    try:
        return parse(content)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(
            f"{path} is no file that `{command}` wrote ({type(error).__name__}: {error}); pass one that is."
        ) from error


def read_json(path: Path, command: str) -> object:
    """Returns the content of a file that `command` wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path} cannot be read as JSON ({error}); pass a file that `{command}` wrote.") from error


def read_fields(kind: type, content: object) -> Any:
    """Returns a dataclass from a JSON object of the same fields; a field that may be None may be missing.

    Args:
        kind (`type`):
            The dataclass; the types of its fields are checked.
        content (`object`):
            The JSON object.
    """
    if not isinstance(content, dict):
        raise TypeError(f"{kind.__name__} is {content!r}")
    for item in fields(kind):
        if not isinstance(content.get(item.name), item.type):
            raise TypeError(f"{item.name} is {content.get(item.name)!r}")
    return kind(**{item.name: content.get(item.name) for item in fields(kind)})

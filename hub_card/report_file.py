"""Reads the JSON files that `wedlm eval` and `wedlm train` write, and refuses others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wedlm.hub_card.options import ExportError


def read_report(path: Path, parse: Callable[[Any], Any], command: str) -> Any:
    """Reads a file that `command` writes, and returns what `parse` makes of its content.

    `parse` may raise what wrong content leads to, such as KeyError.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path} cannot be read as JSON ({error}); pass a file that `{command}` wrote.") from error
    try:
        return parse(content)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ExportError(
            f"{path} is no file that `{command}` wrote ({type(error).__name__}: {error}); pass one that is."
        ) from error

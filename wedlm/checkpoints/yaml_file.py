"""Reads YAML files that somebody else may have written."""

from pathlib import Path
from typing import Any

import yaml


class PlainLoader(yaml.SafeLoader):
    """Refuses aliases: a few lines of them stand for more text than the memory holds."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"it has the alias *{self.peek_event().anchor}, whose text has to be written out")
        return super().compose_node(parent, index)


def read_yaml(path: str | Path) -> Any:
    """Returns the content of a file; raises a YAMLError also for aliases and for text that is nested too deeply."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), PlainLoader)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error

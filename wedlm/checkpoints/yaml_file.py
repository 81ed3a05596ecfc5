"""Reads YAML files that somebody else may have written."""

from pathlib import Path
from typing import Any

import yaml

MAX_NODES = 100_000  # with the text that aliases stand for


class BoundedLoader(yaml.SafeLoader):
    """Bounds the text that aliases stand for: a few lines of them may stand for more than the memory holds."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.num_nodes = 0
        self.sizes: dict[yaml.Node, int] = {}  # the number of nodes that each node stands for

    def compose_node(self, parent, index):
        is_alias, before = self.check_event(yaml.AliasEvent), self.num_nodes
        node = super().compose_node(parent, index)
        if is_alias and node not in self.sizes:  # it is not complete yet
            raise yaml.YAMLError("an alias in it stands for a text that holds this alias")
        self.num_nodes += self.sizes[node] if is_alias else 1
        if self.num_nodes > MAX_NODES:
            raise yaml.YAMLError(f"it holds more than {MAX_NODES} values, or its aliases stand for so many")
        self.sizes.setdefault(node, self.num_nodes - before)
        return node


def read_yaml(path: str | Path) -> Any:
    """Returns the content of a file; raises a YAMLError also for text that is too long or nested too deeply."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), BoundedLoader)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error

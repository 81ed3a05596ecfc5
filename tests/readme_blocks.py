"""The code blocks of the README."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BY_HAND = "by hand"
ELSEWHERE = {"needs a GPU and the network", "needs the network"}
SERVER, CLIENT = "runs until Ctrl-C", "needs the server"


class Block(NamedTuple):
    note: str  # of a comment above it, or ""
    language: str
    code: str

    def lines(self) -> list[str]:
        """Those that go on in the next are one."""
        return self.code.replace("\\\n", "").splitlines()

    def commands(self) -> list[list[str]]:
        """The words of each line that has a command."""
        lines = (shlex.split(line, comments=True) for line in self.lines())
        return [words for words in lines if words]


BLOCKS = [Block(*found) for found in re.findall(r"(?:<!-- (.*?) -->\n)?```(\w+)\n(.*?)```", README, re.DOTALL)]

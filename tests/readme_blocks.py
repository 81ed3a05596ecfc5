"""The code blocks of the README and of docs/quickstart.md."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README, QUICKSTART = ((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/quickstart.md"))
BY_HAND = "by hand"
ELSEWHERE = {"needs a GPU and the network", "needs the network"}
SERVER = "runs until Ctrl-C"


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


BLOCK = re.compile(r"(?:<!-- (.*?) -->\n)?```(python|bash)\n(.*?)```", re.DOTALL)
BLOCKS = [Block(*found) for found in BLOCK.findall(README + QUICKSTART)]

"""The code blocks of the README, of docs/quickstart.md and of other pages."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from typer.main import get_command

from wedlm.commands.cli import app

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


def blocks_of(page: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page)]


BLOCKS = blocks_of(README + QUICKSTART)


def parse(words: list[str]) -> None:
    """Raises where the command line does not take the words of a `wedlm` command."""
    with get_command(app).commands[words[1]].make_context(words[1], words[2:]):
        pass

"""An example, and the words and sentences of texts.toml that examples are made of."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class Example(NamedTuple):
    """A question with a right answer; `key` identifies the problem, whatever words the question uses.

    Example(kind="counting", prompt="Count by 4 from 12 to 24.", answer="12, 16, 20, 24.", key="12 4")
    """

    kind: str
    prompt: str
    answer: str
    key: str

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.answer}]


TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
WORDS = TEXTS["words"]

NAMES = {pronoun: names.split() for pronoun, names in WORDS["names"].items()}  # first names by the person's pronoun
ALL_NAMES = [name for names in NAMES.values() for name in names]
PRONOUNS = WORDS["pronouns"]
THINGS, CONTAINERS, COLORS = (WORDS[name].split() for name in ("things", "containers", "colors"))
HEROES, OBJECTS, PLACES = (WORDS[name].split() for name in ("heroes", "objects", "places"))  # of the stories

"""The words that the examples are made of, from texts.toml. A generator and its checker share them, and no rules."""

import tomllib
from pathlib import Path

TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
WORDS = TEXTS["words"]

NAMES = {pronoun: names.split() for pronoun, names in WORDS["names"].items()}  # first names by the person's pronoun
ALL_NAMES = [name for names in NAMES.values() for name in names]
PRONOUNS = WORDS["pronouns"]
THINGS, CONTAINERS, COLORS = (WORDS[name].split() for name in ("things", "containers", "colors"))
HEROES, OBJECTS, PLACES = (WORDS[name].split() for name in ("heroes", "objects", "places"))  # of the stories

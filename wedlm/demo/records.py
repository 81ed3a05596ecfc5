"""Small tables in JSON or CSV, rewritten by a rule. The question leaves no choice of answer."""

import json
from random import Random
from typing import NamedTuple

from wedlm.demo.words import ANIMALS, CITIES, COLORS, JOBS, NAMES, SPORTS, THINGS

Row = dict[str, str | int]

PEOPLE = [name for names in NAMES.values() for name in names]
WORD_FIELDS = {
    "person": {"city": CITIES, "job": JOBS, "sport": SPORTS},
    "pet": {"animal": ANIMALS, "color": COLORS},
    "article": {"color": COLORS, "city": CITIES},
}
NUMBER_FIELDS = {"person": ["age", "score", "id"], "pet": ["age", "weight"], "article": ["price", "stock", "id"]}
NEW_NAMES = {
    "name": ["first_name", "person", "who"],
    "item": ["article", "product", "thing"],
    "city": ["town", "place"],
    "job": ["work", "trade"],
    "sport": ["hobby", "game"],
    "animal": ["kind", "species"],
    "color": ["paint", "shade"],
    "age": ["years", "age_now"],
    "score": ["points", "result"],
    "id": ["number", "key"],
    "weight": ["kg", "mass"],
    "price": ["cost", "dollars"],
    "stock": ["amount", "count"],
}

RENAME = [
    'Rename the {unit} "{key}" to "{new}".',
    'Change the {unit} name "{key}" to "{new}".',
    'Call the {unit} "{key}" "{new}" instead.',
    'Replace the {unit} name "{key}" by "{new}".',
]
DROP = [
    'Remove the {unit} "{key}".',
    'Drop the {unit} "{key}".',
    'Delete the {unit} "{key}" from every row.',
    'Leave out the {unit} "{key}".',
]
KEEP_IF = [
    'Keep only the rows where "{key}" is "{value}".',
    'Filter the rows: "{key}" must be "{value}".',
    'Remove every row unless "{key}" is "{value}".',
    'Which rows have "{key}" equal to "{value}"? Write only those.',
]
CONVERT = [
    "Convert this {old} to {new_format}.",
    "Rewrite this {old} as {new_format}.",
    "Turn this {old} into {new_format}.",
    "Write these {old} rows as {new_format}.",
    "Change the format from {old} to {new_format}.",
]
UPPER = [
    'Write "{key}" in capital letters.',
    'Put the {unit} "{key}" in upper case.',
    'Make every value of "{key}" upper case.',
    'Use capital letters for the values of "{key}".',
]


def as_json(rows: list[Row]) -> str:
    return json.dumps(rows)


def as_csv(rows: list[Row]) -> str:
    return "\n".join(",".join(map(str, line)) for line in [rows[0], *(row.values() for row in rows)])


WRITE = {"JSON": as_json, "CSV": as_csv}


class Table(NamedTuple):
    rows: list[Row]
    word_keys: list[str]

    @classmethod
    def draw(cls, random: Random) -> "Table":
        topic = random.choice(list(WORD_FIELDS))
        first, firsts = ("item", list(THINGS)) if topic == "article" else ("name", PEOPLE)
        number_key = random.choice(NUMBER_FIELDS[topic])
        word_keys = random.sample(list(WORD_FIELDS[topic]), random.randint(1, 2))
        num_rows = random.randint(2, 3)
        columns = {
            first: random.sample(firsts, num_rows),
            number_key: random.sample(range(1, 100), num_rows),
            **{key: random.choices(WORD_FIELDS[topic][key], k=num_rows) for key in word_keys},
        }
        keys = [first, *random.sample([number_key, *word_keys], 1 + len(word_keys))]
        rows = [{key: columns[key][i] for key in keys} for i in range(num_rows)]
        return cls(rows, word_keys)

    def keys(self) -> list[str]:
        return list(self.rows[0])


class Rule(NamedTuple):
    templates: list[str]
    slots: dict[str, str]
    rows: list[Row]  # after it


def rename(table: Table, random: Random) -> Rule:
    key = random.choice(table.keys())
    new = random.choice(NEW_NAMES[key])
    rows = [{new if name == key else name: value for name, value in row.items()} for row in table.rows]
    return Rule(RENAME, {"key": key, "new": new}, rows)


def drop(table: Table, random: Random) -> Rule:
    dropped = random.choice(table.keys())
    rows = [{key: value for key, value in row.items() if key != dropped} for row in table.rows]
    return Rule(DROP, {"key": dropped}, rows)


def keep_if(table: Table, random: Random) -> Rule:
    """At least one row stays."""
    key = random.choice(table.word_keys)
    value = random.choice(table.rows)[key]
    return Rule(KEEP_IF, {"key": key, "value": value}, [row for row in table.rows if row[key] == value])


def upper_case(table: Table, random: Random) -> Rule:
    key = random.choice(table.word_keys)
    return Rule(UPPER, {"key": key}, [{**row, key: row[key].upper()} for row in table.rows])


def convert(table: Table, random: Random) -> Rule:
    return Rule(CONVERT, {}, table.rows)


RULES = [rename, drop, keep_if, upper_case, convert, convert]


def draw(random: Random) -> tuple[str, str, str]:
    table, rule = Table.draw(random), random.choice(RULES)
    changed = rule(table, random)
    old, new = random.sample(list(WRITE), 2) if rule is convert else [random.choice(list(WRITE))] * 2
    unit = {"JSON": "key", "CSV": "column"}[old]
    instruction = random.choice(changed.templates).format(**changed.slots, unit=unit, old=old, new_format=new)
    text = WRITE[old](table.rows)
    prompt = f"{instruction}\n{text}" if random.random() < 0.7 else f"{text}\n{instruction}"
    return prompt, WRITE[new](changed.rows), as_json([table.rows, rule.__name__, changed.rows])

"""Generates small tables in JSON or CSV with a rule to rewrite them by. There is one right answer."""

import json
from random import Random
from typing import NamedTuple

from wedlm.demo.words import ANIMALS, CITIES, COLORS, JOBS, NAMES, SPORTS, THINGS

Record = dict[str, str | int]  # a line of the table

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


def as_json(records: list[Record]) -> str:
    return json.dumps(records)


def as_csv(records: list[Record]) -> str:
    lines = [records[0], *(record.values() for record in records)]  # of the keys, then of the values
    return "\n".join(",".join(map(str, line)) for line in lines)


WRITE = {"JSON": as_json, "CSV": as_csv}


class Table(NamedTuple):
    records: list[Record]
    word_keys: list[str]

    @classmethod
    def draw(cls, random: Random) -> "Table":
        topic = random.choice(list(WORD_FIELDS))
        first, firsts = ("item", list(THINGS)) if topic == "article" else ("name", PEOPLE)
        number_key = random.choice(NUMBER_FIELDS[topic])
        word_keys = random.sample(list(WORD_FIELDS[topic]), random.randint(1, 2))
        num_records = random.randint(2, 3)
        columns = {
            first: random.sample(firsts, num_records),
            number_key: random.sample(range(1, 100), num_records),
            **{key: random.choices(WORD_FIELDS[topic][key], k=num_records) for key in word_keys},
        }
        keys = [first, *random.sample([number_key, *word_keys], 1 + len(word_keys))]
        records = [{key: columns[key][i] for key in keys} for i in range(num_records)]
        return cls(records, word_keys)

    def keys(self) -> list[str]:
        return list(self.records[0])


class Rewritten(NamedTuple):
    templates: list[str]  # of the instruction
    slots: dict[str, str]
    records: list[Record]


# The rules. Their names are part of the keys that decide which problems are held out.


def rename(table: Table, random: Random) -> Rewritten:
    key = random.choice(table.keys())
    new = random.choice(NEW_NAMES[key])
    records = [{new if name == key else name: value for name, value in old.items()} for old in table.records]
    return Rewritten(RENAME, {"key": key, "new": new}, records)


def drop(table: Table, random: Random) -> Rewritten:
    dropped = random.choice(table.keys())
    records = [{key: value for key, value in old.items() if key != dropped} for old in table.records]
    return Rewritten(DROP, {"key": dropped}, records)


def keep_if(table: Table, random: Random) -> Rewritten:
    """Keeps at least one record."""
    key = random.choice(table.word_keys)
    value = random.choice(table.records)[key]
    records = [record for record in table.records if record[key] == value]
    return Rewritten(KEEP_IF, {"key": key, "value": value}, records)


def upper_case(table: Table, random: Random) -> Rewritten:
    key = random.choice(table.word_keys)
    return Rewritten(UPPER, {"key": key}, [{**record, key: record[key].upper()} for record in table.records])


def convert(table: Table, random: Random) -> Rewritten:
    return Rewritten(CONVERT, {}, table.records)


RULES = [rename, drop, keep_if, upper_case, convert, convert]


def draw(random: Random) -> tuple[str, str, str]:
    table, rule = Table.draw(random), random.choice(RULES)
    rewritten = rule(table, random)
    old, new = random.sample(list(WRITE), 2) if rule is convert else [random.choice(list(WRITE))] * 2
    unit = {"JSON": "key", "CSV": "column"}[old]
    instruction = random.choice(rewritten.templates).format(**rewritten.slots, unit=unit, old=old, new_format=new)
    text = WRITE[old](table.records)
    prompt = f"{instruction}\n{text}" if random.random() < 0.7 else f"{text}\n{instruction}"
    key = as_json([table.records, rule.__name__, rewritten.records])
    return prompt, WRITE[new](rewritten.records), key

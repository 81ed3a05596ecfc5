"""Small tables in JSON or CSV with a rule to rewrite them by. There is one right answer."""

import csv
import io
import json
import re
from random import Random

from examples.demo.example import ALL_NAMES, COLORS, TEXTS, THINGS, Example

SENTENCES = TEXTS["records"]

Record = dict[str, str | int]  # a line of the table

CITIES = SENTENCES["cities"].split()
WORD_FIELDS = {
    "person": {"city": CITIES, "job": SENTENCES["jobs"].split(), "sport": SENTENCES["sports"].split()},
    "pet": {"animal": SENTENCES["animals"].split(), "color": COLORS},
    "article": {"color": COLORS, "city": CITIES},
}
NUMBER_FIELDS = {"person": ["age", "score", "id"], "pet": ["age", "weight"], "article": ["price", "stock", "id"]}
TEMPLATES = SENTENCES["templates"]
RULES = [*TEMPLATES, "convert"]  # the names are part of the keys that decide which problems are held out


def as_csv(records: list[Record]) -> str:
    lines = [records[0], *(record.values() for record in records)]  # of the keys, then of the values
    return "\n".join(",".join(map(str, line)) for line in lines)


WRITE = {"JSON": json.dumps, "CSV": as_csv}


def draw_table(random: Random) -> tuple[list[Record], list[str]]:
    """A table, and the names of its columns of words."""
    topic = random.choice(list(WORD_FIELDS))
    first, firsts = ("item", THINGS) if topic == "article" else ("name", ALL_NAMES)
    number_key = random.choice(NUMBER_FIELDS[topic])
    word_keys = random.sample(list(WORD_FIELDS[topic]), random.randint(1, 2))
    num_records = random.randint(2, 3)
    columns = {
        first: random.sample(firsts, num_records),
        number_key: random.sample(range(1, 100), num_records),
        **{key: random.choices(WORD_FIELDS[topic][key], k=num_records) for key in word_keys},
    }
    keys = [first, *random.sample([number_key, *word_keys], 1 + len(word_keys))]
    return [{key: columns[key][i] for key in keys} for i in range(num_records)], word_keys


def draw(random: Random) -> tuple[str, str, str]:
    (records, word_keys), rule, key, new = draw_table(random), random.choice(RULES), "", ""
    old_format = new_format = None
    if rule == "rename":
        key = random.choice(list(records[0]))
        new = random.choice(SENTENCES["new_names"][key])
        result = [{new if k == key else k: value for k, value in record.items()} for record in records]
    elif rule == "drop":
        key = random.choice(list(records[0]))
        result = [{k: value for k, value in record.items() if k != key} for record in records]
    elif rule == "keep_if":
        key = random.choice(word_keys)
        new = random.choice(records)[key]
        result = [record for record in records if record[key] == new]
    elif rule == "upper_case":
        key = random.choice(word_keys)
        result = [{**record, key: record[key].upper()} for record in records]
    else:
        result = records
        old_format, new_format = random.sample(list(WRITE), 2)
        new = new_format
    old_format = old_format or random.choice(list(WRITE))
    unit = {"JSON": "key", "CSV": "column"}[old_format]
    instruction = random.choice(TEMPLATES[rule]).format(key=key, new=new, unit=unit, old=old_format)
    table = WRITE[old_format](records)
    prompt = f"{instruction}\n{table}" if random.random() < 0.7 else f"{table}\n{instruction}"
    return prompt, WRITE[new_format or old_format](result), json.dumps([records, rule, result])


def record_of(pairs: list[tuple[str, str | int]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("The record has a key twice.")
    return record


def parse_cell(cell: str) -> str | int:
    return int(cell) if re.fullmatch("0|[1-9][0-9]{0,8}", cell) else cell


def parse(text: str) -> tuple[str, list[Record]]:
    """The format of a table and its records."""
    if text.startswith("["):
        return "JSON", json.loads(text, object_pairs_hook=record_of)
    header, *lines = csv.reader(io.StringIO(text))
    return "CSV", [record_of(list(zip(header, map(parse_cell, line), strict=True))) for line in lines]


def check(example: Example, answer: str) -> bool:
    """Whether the answer has the right format and records, spaced in any way."""
    try:
        written = parse(answer)
    except (ValueError, csv.Error, RecursionError):
        return False
    return json.dumps(written) == json.dumps(parse(example.answer))  # as text, because the order of the keys counts

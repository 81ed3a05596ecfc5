"""Checks a rewritten table: applies the rule of the question to its table and compares with the parsed answer."""

import csv
import io
import json
import re

Record = dict[str, str | int]


def record_of(pairs: list[tuple[str, str | int]]) -> Record:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("The record has a key twice.")
    return record


def parse_csv(text: str) -> list[Record]:
    header, *lines = csv.reader(io.StringIO(text))
    return [record_of(list(zip(header, map(parse_cell, line), strict=True))) for line in lines]


def parse_cell(cell: str) -> str | int:
    return int(cell) if re.fullmatch("0|[1-9][0-9]{0,8}", cell) else cell


def parse(text: str) -> tuple[str, list[Record]]:
    """The format of a table and its records."""
    if text.startswith("["):
        return "JSON", json.loads(text, object_pairs_hook=record_of)
    return "CSV", parse_csv(text)


def instruction_and_table(prompt: str) -> tuple[str, str]:
    """The instruction is the first line if that ends a sentence, else the last line."""
    lines = prompt.split("\n")
    if re.search(r"[.?]$", lines[0]):
        return lines[0], "\n".join(lines[1:])
    return lines[-1], "\n".join(lines[:-1])


def apply(instruction: str, records: list[Record]) -> list[Record]:
    words = instruction.lower()
    quoted = re.findall(r'"([^"]*)"', instruction)
    if not quoted:  # a conversion
        return records
    key = quoted[0]
    if re.search("keep only|filter|unless|which", words):
        return [record for record in records if record[key] == quoted[1]]
    if re.search(r"capital|upper", words):
        return [{k: str(v).upper() if k == key else v for k, v in record.items()} for record in records]
    if len(quoted) == 2:
        return [{quoted[1] if k == key else k: v for k, v in record.items()} for record in records]
    return [{k: v for k, v in record.items() if k != key} for record in records]


def check(prompt: str, answer: str) -> bool:
    instruction, table = instruction_and_table(prompt)
    old, records = parse(table)
    target = re.search(r"\b(?:to|as|into) (JSON|CSV)", instruction)
    try:
        written, result = parse(answer)
    except (ValueError, csv.Error, RecursionError):
        return False
    # Compared as text, because the order of the keys counts.
    return written == (target[1] if target else old) and json.dumps(result) == json.dumps(apply(instruction, records))

"""Applies the rule of the question to its table, and compares what the answer says when it is parsed."""

import csv
import io
import json
import re

Rows = list[dict[str, str | int]]


def row_of(pairs: list[tuple[str, str | int]]) -> dict[str, str | int]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("The row has a key twice.")
    return row


def parse_csv(text: str) -> Rows:
    header, *lines = csv.reader(io.StringIO(text))
    return [row_of(list(zip(header, map(parse_cell, line), strict=True))) for line in lines]


def parse_cell(cell: str) -> str | int:
    return int(cell) if re.fullmatch("0|[1-9][0-9]{0,8}", cell) else cell


def parse(text: str) -> tuple[str, Rows]:
    return ("JSON", json.loads(text, object_pairs_hook=row_of)) if text.startswith("[") else ("CSV", parse_csv(text))


def instruction_and_table(prompt: str) -> tuple[str, str]:
    """The instruction is the first line or the last: the one that ends a sentence."""
    lines = prompt.split("\n")
    if re.search(r"[.?]$", lines[0]):
        return lines[0], "\n".join(lines[1:])
    return lines[-1], "\n".join(lines[:-1])


def apply(instruction: str, rows: Rows) -> Rows:
    words = instruction.lower()
    quoted = re.findall(r'"([^"]*)"', instruction)
    if not quoted:  # a conversion
        return rows
    key = quoted[0]
    if re.search("keep only|filter|unless|which", words):
        return [row for row in rows if row[key] == quoted[1]]
    if re.search(r"capital|upper", words):
        return [{k: str(v).upper() if k == key else v for k, v in row.items()} for row in rows]
    if len(quoted) == 2:
        return [{quoted[1] if k == key else k: v for k, v in row.items()} for row in rows]
    return [{k: v for k, v in row.items() if k != key} for row in rows]


def check(prompt: str, answer: str) -> bool:
    instruction, table = instruction_and_table(prompt)
    old, rows = parse(table)
    target = re.search(r"\b(?:to|as|into) (JSON|CSV)", instruction)
    try:
        written, result = parse(answer)
    except (ValueError, csv.Error, RecursionError):
        return False
    # As text, since the order of the keys counts.
    return written == (target[1] if target else old) and json.dumps(result) == json.dumps(apply(instruction, rows))

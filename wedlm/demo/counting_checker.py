"""Checks an answer to a counting question: reads first, last and step from it and counts with range()."""

import re

STEP = re.compile(r"(?:steps? of|by|adding|add|subtracting|subtract|multiples of|number,) (\d+)")
FIRST = re.compile(r"(?:from|start at|adding \d+ to) (\d+)")
LAST = re.compile(r"(\d+)\.$")


def expected(prompt: str) -> list[int]:
    text = prompt.lower()
    first, last = int(FIRST.search(text)[1]), int(LAST.search(text)[1])
    step = 2 if re.search("even|odd", text) else int(STEP.search(text)[1])
    return list(range(first, last + 1, step)) if last > first else list(range(first, last - 1, -step))


def check(prompt: str, answer: str) -> bool:
    return answer == ", ".join(map(str, expected(prompt))) + "."

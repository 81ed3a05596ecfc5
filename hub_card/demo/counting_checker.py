"""Reads a question about a sequence and answers it with range()."""

import re

UNITS = {
    word: value
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen".split()
    )
}
DECADES = {
    word: value
    for value, word in zip(
        range(20, 100, 10), "twenty thirty forty fifty sixty seventy eighty ninety".split(), strict=True
    )
}
VALUES = {
    **UNITS,
    **DECADES,
    **{f"{ten}-{one}": DECADES[ten] + UNITS[one] for ten in DECADES for one in UNITS if 0 < UNITS[one] < 10},
}
WORDS = {value: word for word, value in VALUES.items()}
NUMBER_WORD = re.compile(rf"\b({'|'.join(sorted(VALUES, key=len, reverse=True))})\b")
STEP = re.compile(r"(?:steps? of|count(?: down)? by|adding|add|subtracting|subtract|multiples of|by) (\d+)")
FIRST = re.compile(r"(?:from|start at|starting at|begin with|between) (\d+)")
LAST = re.compile(r"(?:to|reach|and) (\d+)")
HOW_MANY = re.compile(r"(\d+) (?:more )?numbers")
SHOWN = re.compile(r"\d+(?:, \d+){2,}")


def expected(prompt: str) -> list[int]:
    text = NUMBER_WORD.sub(lambda match: str(VALUES[match[0]]), prompt.lower())
    shown = SHOWN.search(text)
    if shown:
        terms = [int(term) for term in shown[0].split(", ")]
        step = terms[-1] - terms[-2]
        number = int(HOW_MANY.search(text)[1])
        return [terms[-1] + step * i for i in range(1, number + 1)]
    step, first = int(STEP.search(text)[1]), int(FIRST.search(text)[1])
    number = HOW_MANY.search(text)
    if number:
        sign = -1 if re.search(r"subtract|down", text) else 1
        return [first + sign * step * i for i in range(int(number[1]))]
    last = int(LAST.search(text)[1])
    sign = 1 if last > first else -1
    return list(range(first, last + sign, sign * step))


def check(prompt: str, answer: str) -> bool:
    write = WORDS.__getitem__ if re.search(r"words?\b", prompt) else str
    return answer == ", ".join(write(number) for number in expected(prompt))

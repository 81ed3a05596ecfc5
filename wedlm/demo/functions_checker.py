"""Checks a function: runs it on cases around the numbers of the description and compares with the description."""

import re
from collections.abc import Callable
from typing import Any

from wedlm.evaluation.sandbox import run_python

CONDITION = r"(?:even|odd|divisible by \d+|greater than \d+|less than \d+|at least \d+|at most \d+)"
OPERATION = r"(?:n|x)(?: (?:times|plus|minus) \d+)?"
WORDS = (
    "apple banana kiwi queue fox jazz zebra yellow violin onyx hat umbrella dog echo glass house island lamp "
    "mountain needle river street tiger wax cab ebb maximum pup rotor xerox"
).split()


def number_in(text: str) -> int:
    return int(re.search(r"\d+", text)[0])


def holds(condition: str, value: int) -> bool:
    if condition in ("even", "odd"):
        return (abs(value) & 1) == (condition == "odd")
    bound = number_in(condition)
    return {
        "divisible by": value - value // bound * bound == 0,
        "greater than": value > bound,
        "less than": value < bound,
        "at least": not value < bound,
        "at most": not value > bound,
    }[condition.rsplit(" ", 1)[0]]


def made_of(operation: str, value: int) -> int:
    _, *rest = operation.split()
    if not rest:
        return value
    other = int(rest[1])
    return {"times": value * other, "plus": value + other, "minus": value - other}[rest[0]]


def of_all(goal: str, values: list) -> Any:
    return {"list": list, "sum": sum, "count": len}[goal](values)


def changed_text(match: re.Match, text: str) -> str:
    verb, letter, other, then, k = match[1], match[2], match[3], match[4], match[5] and int(match[5])
    if verb == "puts":
        text = letter + text if other.startswith("in front") else text + letter
    else:
        new = re.search(r'by "(.)"', other)
        text = (new[1] if new else "").join(text.split(letter))
    if then.startswith("keeps the first"):
        return "".join(list(text)[: min(k, len(text))])
    if then.startswith("keeps the last"):
        return "".join(list(text)[max(len(text) - k, 0) :])
    if then.startswith("drops"):
        return "".join(character for i, character in enumerate(text) if i >= k)
    return text.upper() if "upper" in then else "".join(reversed(text))


def has_word(match: re.Match, word: str) -> bool:
    where, letter, more, k = match[2], match[3], match[4], int(match[5])
    placed = {"start": word[0] == letter, "end": word[-1] == letter, "contain": letter in set(word)}[where]
    return placed and (len(word) > k if more == "more" else len(word) < k)


# Patterns of descriptions, each with the result that it describes as a function of the argument.
MEANINGS: list[tuple[str, Callable[[re.Match, Any], Any]]] = [
    (r"multiplies n by (\d+) and then adds (\d+)", lambda m, n: int(m[1]) * n + int(m[2])),
    (r"multiplies n by (\d+) and then subtracts (\d+)", lambda m, n: int(m[1]) * n - int(m[2])),
    (r"adds (\d+) to n and then multiplies the sum by (\d+)", lambda m, n: (int(m[1]) + n) * int(m[2])),
    (r"subtracts (\d+) from n and then multiplies the difference by (\d+)", lambda m, n: (n - int(m[1])) * int(m[2])),
    (
        rf"whether n is ({CONDITION}) (and|or) ({CONDITION})",
        lambda m, n: (all if m[2] == "and" else any)([holds(m[1], n), holds(m[3], n)]),
    ),
    (
        rf"returns ({OPERATION}) if n is ({CONDITION}), and ({OPERATION}) otherwise",
        lambda m, n: made_of(m[1] if holds(m[2], n) else m[3], n),
    ),
    (
        rf"returns the (sum|list) of ({OPERATION}) for every x in numbers that is ({CONDITION})",
        lambda m, numbers: of_all(m[1], [made_of(m[2], x) for x in numbers if holds(m[3], x)]),
    ),
    (
        rf"(counts) the numbers x that are ({CONDITION})",
        lambda m, numbers: len([x for x in numbers if holds(m[2], x)]),
    ),
    (
        r'(replaces|removes every|puts) "(.)" (.*?text) and then '
        r"((?:keeps|drops) the (?:first|last) (\d+)|changes it to upper|turns it around)",
        changed_text,
    ),
    (
        r'(lists|counts) the words of text that (start|end|contain)(?: with)? "(.)" and have (more|fewer) than (\d+)',
        lambda m, text: of_all(
            "list" if m[1] == "lists" else "count", [word for word in text.split() if has_word(m, word)]
        ),
    ),
]


def cases(parameter: str, prompt: str) -> list[Any]:
    numbers = {int(number) for number in re.findall(r"\d+", prompt)}
    edges = sorted({edge for number in numbers for edge in (number - 1, number, number + 1, 2 * number)})
    plain = [0, 1, 2, 3, 4, 5, 6, 12, 60, 77, 100, -1, -2, -30, *edges]
    if parameter == "n":
        return plain
    if parameter == "numbers":
        return [[], [7], plain, plain[::-1], [*edges, *edges]]
    letters = re.findall(r'"(.)"', prompt)
    lengths = range(1, 12)
    made = [f"{a * n}" for a in letters for n in lengths] + [f"{a}{'m' * n}{a}" for a in letters for n in lengths]
    mixed = ["ab", "".join(letters) + "word", "word" + "".join(letters), "Hello world", "abcdefghijklmnopqrstuvwxyz"]
    ended = [f"{a}{'o' * n}" for a in letters for n in lengths] + [f"{'o' * n}{a}" for a in letters for n in lengths]
    return ["", *mixed, " ".join([*WORDS, *made, *ended])]


def check(prompt: str, answer: str) -> bool:
    name, parameter = re.search(r"(\w+)\((\w+)\)", prompt).groups()
    meaning, match = next((meaning, m) for pattern, meaning in MEANINGS if (m := re.search(pattern, prompt)))
    arguments = cases(parameter, prompt)
    result = run_python(answer, [f"bool({name}.__doc__)", *(f"{name}({argument!r})" for argument in arguments)])
    wanted = ["docstring" in prompt, *(meaning(match, argument) for argument in arguments)]
    return [repr(value) for value in result.values] == [repr(value) for value in wanted]

"""Generates descriptions of small Python functions, which say what a function computes but not how it is written."""

import string
from collections.abc import Callable
from random import Random
from typing import NamedTuple


class Function(NamedTuple):
    parameter: str
    description: str  # "multiplies n by 3 and then adds 7"
    bodies: list[str]  # all of them are right
    key: str


PROMPTS = [
    "Write a Python function {name}({parameter}) that {description}.",
    "Write {name}({parameter}), a Python function that {description}.",
    "Define {name}({parameter}) in Python. It {description}.",
    "Implement the function {name}({parameter}). It {description}.",
    "I need a Python function {name}({parameter}) that {description}.",
    "Please code {name}({parameter}) in Python so that it {description}.",
    "Complete the task: {name}({parameter}) {description}.",
    "Create a function {name}({parameter}) which {description}.",
    "Python, please: a function {name}({parameter}) that {description}.",
    "How do I write a function {name}({parameter}) that {description}?",
]
WITH_DOCSTRING = [" Add a docstring.", " Include a docstring.", " Give it a docstring."]
NAMES = {
    "n": ["f", "compute", "convert", "calculate", "change", "test", "check", "apply"],
    "numbers": ["f", "pick", "collect", "process", "select", "compute", "work", "solve"],
    "text": ["f", "edit", "shorten", "process", "convert", "change", "rewrite", "format_text"],
}
LETTERS = string.ascii_lowercase


def condition(variable: str, random: Random) -> tuple[str, str]:
    """A condition in words that follow "is", and in Python."""
    k = random.randint(2, 50)
    divisor = random.randint(3, 12)
    return random.choice(
        [
            ("even", f"{variable} % 2 == 0"),
            ("odd", f"{variable} % 2 == 1"),
            (f"divisible by {divisor}", f"{variable} % {divisor} == 0"),
            (f"greater than {k}", f"{variable} > {k}"),
            (f"less than {k}", f"{variable} < {k}"),
            (f"at least {k}", f"{variable} >= {k}"),
            (f"at most {k}", f"{variable} <= {k}"),
        ]
    )


def operation(variable: str, random: Random) -> tuple[str, str]:
    """An operation as a noun phrase, and in Python."""
    k = random.randint(2, 20)
    return random.choice(
        [
            (f"{variable} times {k}", f"{variable} * {k}"),
            (f"{variable} plus {k}", f"{variable} + {k}"),
            (f"{variable} minus {k}", f"{variable} - {k}"),
        ]
    )


def arithmetic(random: Random) -> Function:
    k, c = random.randint(2, 20), random.randint(1, 50)
    times = f"multiplies n by {k}"
    add, subtract = f"adds {c}", f"subtracts {c}"
    description, expression = random.choice(
        [
            (f"{times} and then {add}", f"n * {k} + {c}"),
            (f"{times} and then {subtract}", f"n * {k} - {c}"),
            (f"{add} to n and then multiplies the sum by {k}", f"(n + {c}) * {k}"),
            (f"{subtract} from n and then multiplies the difference by {k}", f"(n - {c}) * {k}"),
        ]
    )
    return Function("n", description, [f"    return {expression}"], expression)


def predicate(random: Random) -> Function:
    (first, left), (second, right) = condition("n", random), condition("n", random)
    while first.split()[0] == second.split()[0] or {first, second} == {"even", "odd"}:
        second, right = condition("n", random)
    word = random.choice(["and", "or"])
    key = f" {word} ".join(sorted([left, right]))
    return Function("n", f"checks whether n is {first} {word} {second}", [f"    return {left} {word} {right}"], key)


def choice(random: Random) -> Function:
    (words, test), (yes, then), (no, otherwise) = (part("n", random) for part in (condition, operation, operation))
    bodies = [
        f"    if {test}:\n        return {then}\n    return {otherwise}",
        f"    return {then} if {test} else {otherwise}",
    ]
    return Function("n", f"returns {yes} if n is {words}, and {no} otherwise", bodies, f"{test} {then} {otherwise}")


def selection(random: Random) -> Function:
    """A function of a list: which numbers it takes, what it makes of each, and what it makes of all of them."""
    (words, test), (made, value) = condition("x", random), operation("x", random)
    if random.random() < 0.3:
        made, value = "x", "x"
    goal = random.choice(["sum", "list", "list"])
    if value == "x" and random.random() < 0.4:
        bodies = [
            f"    return sum(1 for x in numbers if {test})",
            f"    count = 0\n    for x in numbers:\n        if {test}:\n            count += 1\n    return count",
        ]
        return Function("numbers", f"counts the numbers x that are {words}", bodies, f"count {test}")
    if goal == "sum":
        bodies = [
            f"    return sum({value} for x in numbers if {test})",
            "    total = 0\n    for x in numbers:\n"
            f"        if {test}:\n            total += {value}\n    return total",
        ]
    else:
        bodies = [
            f"    return [{value} for x in numbers if {test}]",
            "    result = []\n    for x in numbers:\n"
            f"        if {test}:\n            result.append({value})\n    return result",
        ]
    description = f"returns the {goal} of {made} for every x in numbers that is {words}"
    return Function("numbers", description, bodies, f"{goal} {value} {test}")


def text_change(random: Random) -> Function:
    a, b = random.sample(LETTERS, 2)
    k = random.randint(2, 9)
    first, changed = random.choice(
        [
            (f'replaces "{a}" by "{b}" in text', f'text.replace("{a}", "{b}")'),
            (f'removes every "{a}" from text', f'text.replace("{a}", "")'),
            (f'puts "{a}" in front of text', f'"{a}" + text'),
            (f'puts "{a}" behind text', f'text + "{a}"'),
        ]
    )
    then, behind = random.choice(
        [
            (f"keeps the first {k} characters", f"[:{k}]"),
            (f"keeps the last {k} characters", f"[-{k}:]"),
            (f"drops the first {k} characters", f"[{k}:]"),
            ("changes it to upper case", ".upper()"),
            ("turns it around", "[::-1]"),
        ]
    )
    expression = f"{changed}{behind}" if changed.startswith("text.") else f"({changed}){behind}"
    bodies = [f"    return {expression}", f"    text = {changed}\n    return text{behind}"]
    return Function("text", f"{first} and then {then}", bodies, expression)


def words_of_text(random: Random) -> Function:
    letter, k = random.choice(LETTERS), random.randint(2, 9)
    which, test = random.choice(
        [
            (f'start with "{letter}"', f'word.startswith("{letter}")'),
            (f'end with "{letter}"', f'word.endswith("{letter}")'),
            (f'contain "{letter}"', f'"{letter}" in word'),
        ]
    )
    length, longer = random.choice(
        [
            (f"have more than {k} letters", f"len(word) > {k}"),
            (f"have fewer than {k} letters", f"len(word) < {k}"),
        ]
    )
    test = f"{test} and {longer}"
    if random.random() < 0.5:
        bodies = [
            f"    return [word for word in text.split() if {test}]",
            "    result = []\n    for word in text.split():\n"
            f"        if {test}:\n            result.append(word)\n    return result",
        ]
        return Function("text", f"lists the words of text that {which} and {length}", bodies, f"list {test}")
    bodies = [
        f"    return sum(1 for word in text.split() if {test})",
        f"    count = 0\n    for word in text.split():\n        if {test}:\n            count += 1\n    return count",
    ]
    return Function("text", f"counts the words of text that {which} and {length}", bodies, f"count {test}")


FAMILIES: dict[Callable[[Random], Function], int] = {
    arithmetic: 2,
    predicate: 2,
    choice: 3,
    selection: 4,
    text_change: 2,
    words_of_text: 2,
}


def draw(random: Random) -> tuple[str, str, str]:
    (family,) = random.choices(list(FAMILIES), FAMILIES.values())
    parameter, description, bodies, key = family(random)
    name = random.choice(NAMES[parameter])
    prompt = random.choice(PROMPTS).format(name=name, parameter=parameter, description=description)
    lines = [f"def {name}({parameter}):"]
    if random.random() < 0.25:
        prompt += random.choice(WITH_DOCSTRING)
        lines.append(f'    """{description[0].upper()}{description[1:]}."""')
    return prompt, "\n".join([*lines, random.choice(bodies)]), key

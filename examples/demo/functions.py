"""Descriptions of small Python functions, which say what a function computes but not how it is written."""

import re
import string
from random import Random
from typing import Any, NamedTuple

from examples.demo.example import TEXTS, Example
from wedlm.evaluation.sandbox import run_python

SENTENCES = TEXTS["functions"]


class Function(NamedTuple):
    parameter: str
    description: str  # "multiplies n by 3 and then adds 7"
    bodies: list[str]  # all of them are right
    key: str


NAMES = {key: words.split() for key, words in SENTENCES["names"].items()}


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
    word, sign = random.choice([("times", "*"), ("plus", "+"), ("minus", "-")])
    return f"{variable} {word} {k}", f"{variable} {sign} {k}"


def comprehension_or_loop(goal: str, value: str, variable: str, items: str, test: str) -> list[str]:
    """The bodies of a function that lists or sums `value` for every item that passes the test."""
    name, start, step, bare = {
        "list": ("result", "[]", f"result.append({value})", f"[{value} for {variable} in {items} if {test}]"),
        "sum": ("total", "0", f"total += {value}", f"sum({value} for {variable} in {items} if {test})"),
        "count": ("count", "0", "count += 1", f"sum(1 for {variable} in {items} if {test})"),
    }[goal]
    loop = f"    {name} = {start}\n    for {variable} in {items}:\n        if {test}:\n            {step}\n"
    return [f"    return {bare}", f"{loop}    return {name}"]


def arithmetic(random: Random) -> Function:
    k, c = random.randint(2, 20), random.randint(1, 50)
    description, expression = random.choice(
        [
            (f"multiplies n by {k} and then adds {c}", f"n * {k} + {c}"),
            (f"multiplies n by {k} and then subtracts {c}", f"n * {k} - {c}"),
            (f"adds {c} to n and then multiplies the sum by {k}", f"(n + {c}) * {k}"),
            (f"subtracts {c} from n and then multiplies the difference by {k}", f"(n - {c}) * {k}"),
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
    description, key = f"returns the {goal} of {made} for every x in numbers that is {words}", f"{goal} {value} {test}"
    if value == "x" and random.random() < 0.4:
        goal, description, key = "count", f"counts the numbers x that are {words}", f"count {test}"
    return Function("numbers", description, comprehension_or_loop(goal, value, "x", "numbers", test), key)


def text_change(random: Random) -> Function:
    a, b = random.sample(string.ascii_lowercase, 2)
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
    letter, k = random.choice(string.ascii_lowercase), random.randint(2, 9)
    which, test = random.choice(
        [
            (f'start with "{letter}"', f'word.startswith("{letter}")'),
            (f'end with "{letter}"', f'word.endswith("{letter}")'),
            (f'contain "{letter}"', f'"{letter}" in word'),
        ]
    )
    more, sign = random.choice([("more", ">"), ("fewer", "<")])
    test = f"{test} and len(word) {sign} {k}"
    verb, goal = ("lists", "list") if random.random() < 0.5 else ("counts", "count")
    description = f"{verb} the words of text that {which} and have {more} than {k} letters"
    return Function(
        "text", description, comprehension_or_loop(goal, "word", "word", "text.split()", test), f"{goal} {test}"
    )


FAMILIES = {arithmetic: 2, predicate: 2, choice: 3, selection: 4, text_change: 2, words_of_text: 2}


def draw(random: Random) -> tuple[str, str, str]:
    (family,) = random.choices(list(FAMILIES), FAMILIES.values())
    parameter, description, bodies, key = family(random)
    name = random.choice(NAMES[parameter])
    prompt = random.choice(SENTENCES["prompts"]).format(name=name, parameter=parameter, description=description)
    lines = [f"def {name}({parameter}):"]
    if random.random() < 0.25:
        prompt += random.choice(SENTENCES["with_docstring"])
        lines.append(f'    """{description[0].upper()}{description[1:]}."""')
    return prompt, "\n".join([*lines, random.choice(bodies)]), key


# The checker runs the function on cases around the numbers of the question, beside the right one.
WORDS = (
    "apple banana kiwi queue fox jazz zebra yellow violin onyx hat umbrella dog echo glass house island lamp "
    "mountain needle river street tiger wax cab ebb maximum pup rotor xerox"
).split()


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


def check(example: Example, answer: str) -> bool:
    name, parameter = re.search(r"(\w+)\((\w+)\)", example.prompt).groups()
    arguments = cases(parameter, example.prompt)
    given = run_python(answer, [f"bool({name}.__doc__)", *(f"{name}({argument!r})" for argument in arguments)])
    right: dict[str, Any] = {}
    exec(example.answer, right)  # which the generator wrote
    function = right[name]
    return repr(given.values) == repr([bool(function.__doc__), *map(function, arguments)])

"""Generates linear equations in one unknown, solved step by step and checked; a step is one small calculation."""

from fractions import Fraction
from random import Random
from typing import NamedTuple

LETTERS = ["a", "k", "n", "p", "t", "w", "x", "x", "x", "y", "z"]
QUESTIONS = [
    "Solve {equation}.",
    "Solve {equation} for {letter}.",
    "Find {letter}: {equation}",
    "What is {letter} if {equation}?",
    "Which number {letter} makes {equation} true?",
    "Solve the equation {equation} step by step.",
    "If {equation}, what is the value of {letter}?",
    "Please solve for {letter}: {equation}",
    "Work out {letter} in {equation}.",
    "I need to solve {equation}. What is {letter}?",
]


class Solved(NamedTuple):
    equation: str
    steps: list[str]
    checks: list[str]
    sides: list[tuple[Fraction | int, int]]  # (factor of the unknown, constant), left and right


def plus(v: str, x: int, random: Random) -> Solved:
    a, b = random.randint(2, 9), random.randint(1, 30)
    c = a * x + b
    steps = [f"{a}{v} = {c} - {b} = {a * x}", f"{v} = {a * x} / {a} = {x}"]
    check = f"{a} * {x} + {b} = {a * x} + {b} = {c}"
    equation = random.choice([f"{a}{v} + {b} = {c}", f"{a}{v} + {b} = {c}", f"{c} = {a}{v} + {b}"])
    if random.random() < 0.25:
        equation, check = f"{b} + {a}{v} = {c}", f"{b} + {a} * {x} = {b} + {a * x} = {c}"
    return Solved(equation, steps, [check], [(a, b), (0, c)])


def minus(v: str, x: int, random: Random) -> Solved:
    a = random.randint(2, 9)
    b = random.randint(1, min(a * x, 30))
    c = a * x - b
    steps = [f"{a}{v} = {c} + {b} = {a * x}", f"{v} = {a * x} / {a} = {x}"]
    check = f"{a} * {x} - {b} = {a * x} - {b} = {c}"
    return Solved(f"{a}{v} - {b} = {c}", steps, [check], [(a, -b), (0, c)])


def taken_from(v: str, x: int, random: Random) -> Solved:
    a, c = random.randint(2, 9), random.randint(0, 30)
    b = a * x + c
    steps = [f"{a}{v} = {b} - {c} = {a * x}", f"{v} = {a * x} / {a} = {x}"]
    check = f"{b} - {a} * {x} = {b} - {a * x} = {c}"
    return Solved(f"{b} - {a}{v} = {c}", steps, [check], [(-a, b), (0, c)])


def bracket(v: str, x: int, random: Random) -> Solved:
    a, b = random.randint(2, 9), random.randint(1, 9)
    total = x + b
    c = a * total
    steps = [f"{v} + {b} = {c} / {a} = {total}", f"{v} = {total} - {b} = {x}"]
    check = f"{a} * ({x} + {b}) = {a} * {total} = {c}"
    return Solved(f"{a}({v} + {b}) = {c}", steps, [check], [(a, a * b), (0, c)])


def divided(v: str, x: int, random: Random) -> Solved:
    a, b = random.randint(2, 9), random.randint(1, 30)
    c = x + b
    steps = [f"{v} / {a} = {c} - {b} = {x}", f"{v} = {x} * {a} = {a * x}"]
    check = f"{a * x} / {a} + {b} = {x} + {b} = {c}"
    return Solved(f"{v} / {a} + {b} = {c}", steps, [check], [(Fraction(1, a), b), (0, c)])


def both_sides(v: str, x: int, random: Random) -> Solved:
    d, more = random.randint(2, 5), random.randint(2, 5)
    a, b = d + more, random.randint(1, 20)
    e = more * x + b
    steps = [f"{a}{v} - {d}{v} = {e} - {b}", f"{more}{v} = {more * x}", f"{v} = {more * x} / {more} = {x}"]
    checks = [f"{side} * {x} + {c} = {side * x} + {c} = {a * x + b}" for side, c in ((a, b), (d, e))]
    return Solved(f"{a}{v} + {b} = {d}{v} + {e}", steps, checks, [(a, b), (d, e)])


FORMS = {plus: 4, minus: 3, taken_from: 2, bracket: 3, divided: 2, both_sides: 3}


def draw(random: Random) -> tuple[str, str, str]:
    letter, x = random.choice(LETTERS), random.randint(1, 10)
    (form,) = random.choices(list(FORMS), FORMS.values())
    solved = form(letter, x, random)
    prompt = random.choice(QUESTIONS).format(equation=solved.equation, letter=letter)
    lines = [*solved.steps, *(f"Check: {check}" for check in solved.checks)]
    answer = "\n".join([*lines, f"Answer: {solved.steps[-1].split()[0]} = {solved.steps[-1].split()[-1]}"])
    return prompt, answer, " = ".join(f"{factor} {constant}" for factor, constant in solved.sides)

"""Linear equations in one unknown, solved step by step and checked; a step is one small calculation."""

import ast
import operator
import re
from fractions import Fraction
from random import Random

from examples.demo.words import TEXTS

SENTENCES = TEXTS["equations"]

LETTERS = ["a", "k", "n", "p", "t", "w", "x", "x", "x", "y", "z"]

# The forms of equations. Each returns the equation, the lines of its solution, and its key: factor of the unknown and
# constant, left and right.


def plus(v: str, x: int, random: Random) -> tuple[str, list[str], str]:
    a, b = random.randint(2, 9), random.randint(1, 30)
    c = a * x + b
    check = f"Check: {a} * {x} + {b} = {a * x} + {b} = {c}"
    equation = random.choice([f"{a}{v} + {b} = {c}", f"{a}{v} + {b} = {c}", f"{c} = {a}{v} + {b}"])
    if random.random() < 0.25:
        equation, check = f"{b} + {a}{v} = {c}", f"Check: {b} + {a} * {x} = {b} + {a * x} = {c}"
    return equation, [f"{a}{v} = {c} - {b} = {a * x}", f"{v} = {a * x} / {a} = {x}", check], f"{a} {b} = 0 {c}"


def minus(v: str, x: int, random: Random) -> tuple[str, list[str], str]:
    a = random.randint(2, 9)
    b = random.randint(1, min(a * x, 30))
    c = a * x - b
    lines = [f"{a}{v} = {c} + {b} = {a * x}", f"{v} = {a * x} / {a} = {x}"]
    return f"{a}{v} - {b} = {c}", [*lines, f"Check: {a} * {x} - {b} = {a * x} - {b} = {c}"], f"{a} {-b} = 0 {c}"


def taken_from(v: str, x: int, random: Random) -> tuple[str, list[str], str]:
    a, c = random.randint(2, 9), random.randint(0, 30)
    b = a * x + c
    lines = [f"{a}{v} = {b} - {c} = {a * x}", f"{v} = {a * x} / {a} = {x}"]
    return f"{b} - {a}{v} = {c}", [*lines, f"Check: {b} - {a} * {x} = {b} - {a * x} = {c}"], f"{-a} {b} = 0 {c}"


def bracket(v: str, x: int, random: Random) -> tuple[str, list[str], str]:
    a, b = random.randint(2, 9), random.randint(1, 9)
    total, c = x + b, a * (x + b)
    lines = [f"{v} + {b} = {c} / {a} = {total}", f"{v} = {total} - {b} = {x}"]
    return f"{a}({v} + {b}) = {c}", [*lines, f"Check: {a} * ({x} + {b}) = {a} * {total} = {c}"], f"{a} {a * b} = 0 {c}"


def divided(v: str, x: int, random: Random) -> tuple[str, list[str], str]:
    a, b = random.randint(2, 9), random.randint(1, 30)
    c = x + b
    lines = [f"{v} / {a} = {c} - {b} = {x}", f"{v} = {x} * {a} = {a * x}"]
    return f"{v} / {a} + {b} = {c}", [*lines, f"Check: {a * x} / {a} + {b} = {x} + {b} = {c}"], f"1/{a} {b} = 0 {c}"


def both_sides(v: str, x: int, random: Random) -> tuple[str, list[str], str]:
    d, more = random.randint(2, 5), random.randint(2, 5)
    a, b = d + more, random.randint(1, 20)
    e = more * x + b
    lines = [f"{a}{v} - {d}{v} = {e} - {b}", f"{more}{v} = {more * x}", f"{v} = {more * x} / {more} = {x}"]
    lines += [f"Check: {side} * {x} + {c} = {side * x} + {c} = {a * x + b}" for side, c in ((a, b), (d, e))]
    return f"{a}{v} + {b} = {d}{v} + {e}", lines, f"{a} {b} = {d} {e}"


FORMS = {plus: 4, minus: 3, taken_from: 2, bracket: 3, divided: 2, both_sides: 3}


def draw(random: Random) -> tuple[str, str, str]:
    letter, x = random.choice(LETTERS), random.randint(1, 10)
    (form,) = random.choices(list(FORMS), FORMS.values())
    equation, lines, key = form(letter, x, random)
    result = next(line.split()[-1] for line in reversed(lines) if not line.startswith("Check: "))
    prompt = random.choice(SENTENCES["questions"]).format(equation=equation, letter=letter)
    return prompt, "\n".join([*lines, f"Answer: {letter} = {result}"]), key


# The checker puts the number in: both sides of every line must be equal.
EXPRESSION = r"[a-z0-9(][a-z0-9()+\-*/ ]*"
ANSWER = re.compile(r"Answer: ([a-z]) = ([0-9]+)")
STEP = re.compile(rf"(?:Check: )?{EXPRESSION}(?: = {EXPRESSION})+")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value_of(expression: str, letter: str, number: int) -> Fraction:
    """value_of("3(x + 2)", "x", 5) == 21"""
    written_out = re.sub(r"(\d)\s*([a-z(])", r"\1*\2", expression)

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Name) and node.id == letter:
            return Fraction(number)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return Fraction(node.value)
        raise ValueError(f"{ast.dump(node)} is no part of a linear equation.")

    return value(ast.parse(written_out.strip(), mode="eval").body)


def is_true(equation: str, letter: str, number: int) -> bool:
    values = [value_of(side, letter, number) for side in equation.split(" = ")]
    return len(values) > 1 and len(set(values)) == 1


def equation_in(prompt: str) -> str:
    """The equation of a question, whose other words have no digits and no operators."""
    sides = [re.split(r"[^A-Za-z0-9()+\-*/ ]", side) for side in prompt.split(" = ")]
    left = re.search(r"(?:^|\s)((?:[a-z]|\S*[\d()+\-*/]\S*)(?: (?:[a-z]|\S*[\d()+\-*/]\S*))*)$", sides[0][-1])[1]
    right = re.match(r"(?:[a-z]\b|[\d()+\-*/]\S*)(?: (?:[a-z]\b|[\d()+\-*/]\S*))*", sides[1][0])[0]
    return f"{left} = {right}"


def check(prompt: str, answer: str) -> bool:
    *steps, last = answer.split("\n")
    solution = ANSWER.fullmatch(last)
    if not solution or not all(STEP.fullmatch(step) for step in steps) or len(set(steps)) < len(steps):
        return False
    letter, number = solution[1], int(solution[2])
    checks = [step.removeprefix("Check: ") for step in steps if step.startswith("Check: ")]
    work = [step for step in steps if not step.startswith("Check: ")]
    question = equation_in(prompt)
    # The answer must compute each side with the unknown once, with the number in its place.
    sides = [side for side in question.split(" = ") if letter in side]
    put_in = [re.sub(rf"(?<=\d){letter}", f" * {number}", side).replace(letter, str(number)) for side in sides]
    put_in = [re.sub(r"(?<=\d)\(", " * (", side) for side in put_in]
    try:
        return (
            is_true(question, letter, number)
            and len(work) >= 2
            and all(letter in step.split(" = ")[0] for step in work)
            and work[-1].split(" = ")[0] == letter
            and [check.split(" = ")[0] for check in checks] == put_in
            and all(is_true(step, letter, number) for step in [*work, *checks])
        )
    except (ValueError, KeyError, SyntaxError, ZeroDivisionError, RecursionError):
        return False

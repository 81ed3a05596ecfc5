"""Linear equations in one unknown, solved step by step and checked; a step is one small calculation."""

import ast
import operator
import re
from fractions import Fraction
from random import Random

from examples.demo.example import TEXTS, Example

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


# The checker puts the number in: all sides of every line must be equal.
EXPRESSION = r"[a-z0-9(][a-z0-9()+\-*/ ]*"
ANSWER = re.compile(r"Answer: ([a-z]) = ([0-9]+)")
CHECK = "Check: "
STEP = re.compile(rf"(?:{CHECK})?{EXPRESSION}(?: = {EXPRESSION})+")
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


def left_sides(steps: list[str], start: str = "") -> list[str]:
    """What stands before the first = of the steps that begin so."""
    return [step.removeprefix(start).split(" = ")[0] for step in steps if step.startswith(start)]


def check(example: Example, answer: str) -> bool:
    """Whether the number is right, all steps are true, and the last of them put it into the question."""
    *steps, last = answer.split("\n")
    *right_steps, right = example.answer.split("\n")
    if last != right or not all(STEP.fullmatch(step) for step in steps) or len(set(steps)) < len(steps):
        return False
    letter, number = ANSWER.fullmatch(last).groups()
    work = [step for step in steps if not step.startswith(CHECK)]
    try:
        return (
            len(work) >= 2
            and all(letter in left for left in left_sides(work))
            and left_sides(work)[-1] == letter
            and left_sides(steps, CHECK) == left_sides(right_steps, CHECK)
            and all(is_true(step.removeprefix(CHECK), letter, int(number)) for step in steps)
        )
    except (ValueError, KeyError, SyntaxError, ZeroDivisionError, RecursionError):
        return False

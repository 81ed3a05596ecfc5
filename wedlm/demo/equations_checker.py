"""Checks the solution of an equation: with the number put in, both sides of every line must be equal."""

import ast
import operator
import re
from fractions import Fraction

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
    first, *others = (value_of(side, letter, number) for side in equation.split(" = "))
    return bool(others) and all(other == first for other in others)


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

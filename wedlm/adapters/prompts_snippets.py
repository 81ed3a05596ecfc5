"""Prompts about Python code: to change it, or to explain it. The code is made from templates, with varying names."""

import ast
import re
from random import Random
from string import Template
from typing import NamedTuple

from wedlm.adapters.prompts_code_templates import CODES
from wedlm.adapters.prompts_phrases import items

RESULTS = items("result; total; output; answer; value; res; found; collected; out; acc")
SHORT = items("x; y; n; k; v; e; tmp; foo; item; val")
BETTER = items(
    "entry; current; element; outcome; selection; summary; collection; final; count; candidate; limit; amount; data; "
    "rest"
)


CHANGES = [
    "Rename the variable {name} to {new} in this code.",
    "Rename {name} to {new}.",
    "Rename the function {function} to {new}_{function}.",
    "In this code, call the variable {new} instead of {name}.",
    "Add a docstring to this code.",
    "Add a short docstring.",
    "Document this code with docstrings that name arguments and results.",
    "Add type hints to this code.",
    "Add type annotations and change nothing else.",
    "Add comments to this code.",
    "Make this code shorter without changing what it does.",
    "Make this code easier to read.",
    "Add a check of the arguments that raises a ValueError.",
    "Add a main block that shows how to use this code.",
    "Write two tests for this code with pytest.",
    "Rewrite this code in JavaScript.",
    "Replace every name in this code that is not clear by a better one.",
]
SPECIFIC = [
    "{change}.",
    "{change}.",
    "Please change this code: {change}.",
    "Edit the code as follows. {change}.",
    "{change}. Show the whole code.",
]
MISTAKES = [
    "This code has a bug. Find it and fix it.",
    "Fix the bug in this code.",
    "What is wrong with this code? Correct it.",
    "My code does not do the right thing. Can you correct it?",
    "Find the mistake and write the corrected code.",
]
REFORMATS = [
    "Format this code according to PEP 8.",
    "Clean up the formatting of this code.",
    "Reformat this code with four spaces of indentation and spaces around operators.",
]
EXPLANATIONS = [
    "Explain this code.",
    "Explain this code line by line.",
    "What does this code do?",
    "What does this function do? Answer in one sentence.",
    "Describe in plain words, for a beginner, how this code works.",
    "Explain the purpose of each variable in this code.",
    "What is the running time of this code?",
    "Is there anything you would improve in this code?",
    "Write a short comment that summarises this code.",
    "Which errors can this code raise, and when?",
    "Give an example call of this code and its result.",
    "I am learning Python. Can you walk me through this code?",
    "Suggest a better name for this function and say why.",
    "How would I test this code?",
    "Write pseudocode for this code.",
    "What happens in this code for empty input?",
    "Review this code.",
    "Explain what could go wrong with this code.",
]


class Snippet(NamedTuple):
    """A piece of code that was made from a template."""

    code: str
    requests: list[str]
    broken: str


def snippet(random: Random) -> Snippet:
    template = random.choice(CODES)
    many, one, *fields = random.choice(template.names).split()
    number = random.randint(2, 9) * random.choice([1, 5, 10])
    values = {
        "many": many,
        "noun": one,
        "one": one if random.random() < 0.75 else random.choice(SHORT),
        "result": random.choice(RESULTS),
        "number": str(number),
        "other": str(number + random.randint(1, 40)),
        "letter": random.choice("abcdefgmprst"),
        "text_field": fields[0] if fields else "",
        "number_field": fields[1] if fields else "",
        "Class": one.capitalize(),
        "ClassList": one.capitalize() + "List",
    }

    def fill(text: str) -> str:
        return Template(text).substitute(values)

    code = fill(template.code.strip("\n"))
    broken = fill(template.code.strip("\n").replace(*template.mistake))
    return Snippet(code, [fill(request) for request in items(template.requests)], broken)


def variables(code: str) -> list[str]:
    """The arguments and variables of code."""
    nodes = list(ast.walk(ast.parse(code)))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(stored | {node.arg for node in nodes if isinstance(node, ast.arg)} - {"self"})


def with_code(random: Random, request: str, code: str) -> str:
    """A request with code behind or before it, fenced or not."""
    way = random.randrange(4)
    if way == 0:
        return f"```python\n{code}\n```\n\n{request}"
    return f"{request}\n\n```python\n{code}\n```" if way < 3 else f"{request}\n\n{code}"


def squeezed(random: Random, code: str) -> str:
    """The code with its blanks around operators taken away, or with other indentation."""
    if random.random() < 0.5:
        code = code.replace("    ", " " * random.choice([1, 2, 3]))
    for sign in (" = ", " += ", " + ", " - ", " > ", " >= ", ", "):
        if random.random() < 0.8:
            code = code.replace(sign, sign.strip())
    return code


def draw_change(random: Random) -> tuple[str, str]:
    drawn = snippet(random)
    way, code = random.randrange(10), drawn.code
    if way < 4:
        request = random.choice(SPECIFIC).format(change=random.choice(drawn.requests))
    elif way == 4:
        request, code = random.choice(MISTAKES), drawn.broken
    elif way == 5:
        request, code = random.choice(REFORMATS), squeezed(random, code)
    else:
        if random.random() < 0.3:
            code = f"{code}\n\n\n{snippet(random).code}"
        request = random.choice(CHANGES).format(
            name=random.choice(variables(code)),
            function=re.search(r"def ([a-z]\w+)", code)[1],
            new=random.choice([name for name in BETTER if name not in code]),
        )
    return drawn.code, with_code(random, request, code)


def draw_explanation(random: Random) -> tuple[str, str]:
    drawn = snippet(random)
    return drawn.code, with_code(random, random.choice(EXPLANATIONS), drawn.code)

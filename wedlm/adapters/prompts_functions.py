"""Prompts with a Python function to complete: its signature, its docstring, and true examples in it."""

from collections.abc import Callable
from inspect import isfunction, signature
from random import Random
from types import ModuleType
from typing import Any

from wedlm.adapters import prompts_number_functions, prompts_text_functions
from wedlm.adapters.prompts_phrases import items
from wedlm.adapters.prompts_snippets import with_code

WORDS = items("""
apple; river; stone; window; garden; yellow; summer; bridge; candle; forest; pencil; market; level; noon; cloud; silver
ocean; kitchen; paper; dragon; letter; moon; tiger; bottle; radar; music; engine; story; ladder; button; civic; pepper
""")
REQUESTS = [
    "Complete this Python function:",
    "Complete the following function.",
    "Write the body of this function:",
    "Fill in the body of this Python function.",
    "Finish this function:",
    "Implement this function in Python:",
    "Please complete the code:",
    "Continue this code:",
    "Read the docstring and write the function.",
    "Complete this function. Give only the code.",
    "Complete this function, and explain your solution in one sentence.",
]


def functions_of(module: ModuleType) -> list[Callable]:
    return [value for value in vars(module).values() if isfunction(value) and value.__module__ == module.__name__]


FUNCTIONS = functions_of(prompts_number_functions) + functions_of(prompts_text_functions)


def value_of(random: Random, name: str, kind: Any) -> Any:
    """An argument for an example call."""
    if kind == list[int]:
        return [random.randint(-3 if name == "numbers" else 1, 12) for _ in range(random.randint(4, 7))]
    if kind is int:
        return random.randint(10, 150) if name in ("n", "minutes") else random.randint(2, 4)
    if kind is str:
        return random.choice("aeorst") if name == "letter" else " ".join(random.sample(WORDS, random.randint(2, 3)))
    if kind == list[str]:
        return random.sample(WORDS, random.randint(3, 5))
    if kind == dict[str, int]:
        return {word: random.randint(1, 6) for word in random.sample(WORDS, random.randint(2, 4))}
    size = random.randint(2, 3)  # a square matrix
    return [[random.randint(0, 9) for _ in range(size)] for _ in range(size)]


def example_of(random: Random, function: Callable) -> tuple[str, str]:
    """A call of the function and its result, as Python writes them."""
    arguments = signature(function).parameters.values()
    values = [value_of(random, argument.name, argument.annotation) for argument in arguments]
    return f"{function.__name__}({', '.join(map(repr, values))})", repr(function(*values))


def unfinished(random: Random, function: Callable) -> str:
    """The head of the function: signature, docstring, up to three examples in one of three styles."""
    lines = [line.strip() for line in function.__doc__.strip().splitlines()]
    examples = [example_of(random, function) for _ in range(random.randrange(4))]
    style = random.randrange(3)
    if examples:
        lines.append("")
    if examples and style == 1:
        lines.append("Examples:" if len(examples) > 1 else "Example:")
    for call, result in examples:
        lines += [[f">>> {call}", result], [f"    {call} == {result}"], [f"{call} returns {result}"]][style]
    if len(lines) == 1:
        docstring = f'    """{lines[0]}"""'
    else:
        docstring = "\n".join(["    " + line if line else line for line in [f'"""{lines[0]}', *lines[1:], '"""']])
    head = f"def {function.__name__}{signature(function)}:"
    return f"{head}\n{docstring}"


def draw(random: Random) -> tuple[str, str]:
    function = random.choice(FUNCTIONS)
    code = unfinished(random, function)
    return function.__name__, code if random.random() < 0.2 else with_code(random, random.choice(REQUESTS), code)

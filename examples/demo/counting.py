"""Questions that ask to count up or down in steps. They name both ends, and one answer is right."""

import re
from random import Random

SMALL_STEPS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
LARGE_STEPS = [11, 12, 15, 20, 25, 50, 100]

UP_TO = [
    "Count by {step} from {first} to {last}.",
    "Please count by {step} from {first} up to {last}.",
    "In steps of {step}, go from {first} to {last}.",
    "Keep adding {step} to {first} until you reach {last}.",
    "With a step of {step}, list the numbers from {first} to {last}.",
    "Start at {first} and add {step} until you are at {last}.",
    "Write every number, {step} apart, from {first} to {last}.",
    "Go up by {step} each time, from {first} to {last}.",
]
DOWN_TO = [
    "Count down by {step} from {first} to {last}.",
    "Please count backwards by {step} from {first} to {last}.",
    "In steps of {step}, go down from {first} to {last}.",
    "Keep subtracting {step} from {first} until you reach {last}.",
    "With a step of {step}, list the falling numbers from {first} to {last}.",
    "Start at {first} and subtract {step} until you are at {last}.",
    "Write every number, {step} apart, backwards from {first} to {last}.",
    "Go down by {step} each time, from {first} to {last}.",
]
MULTIPLES = [
    "List the multiples of {step} from {first} to {last}.",
    "Which are the multiples of {step}? Write those from {first} to {last}.",
]
EVEN_OR_ODD = [
    "List the {parity} numbers from {first} to {last}.",
    "Which numbers are {parity}? Write those from {first} to {last}.",
]


def draw(random: Random) -> tuple[str, str, str]:
    step = random.choice(SMALL_STEPS if random.random() < 0.8 else LARGE_STEPS)
    number = min(random.randint(6, 16), 900 // step + 1)
    span = step * (number - 1)
    low = random.randint(0, 999 - span) if random.random() < 0.25 else random.randint(0, max(99 - span, 20))
    rising = random.random() < 0.6
    numbers = list(range(low, low + span + 1, step))[:: 1 if rising else -1]

    templates = UP_TO if rising else DOWN_TO
    if rising and random.random() < 0.3:
        if step == 2:
            templates = EVEN_OR_ODD
        elif low and low % step == 0:
            templates = MULTIPLES
    parity = "odd" if low % 2 else "even"
    prompt = random.choice(templates).format(first=numbers[0], last=numbers[-1], step=step, parity=parity)
    return prompt, ", ".join(map(str, numbers)) + ".", f"{numbers[0]} {numbers[1] - numbers[0]}"


# The checker reads first, last and step from the question.
STEP = re.compile(r"(?:steps? of|by|adding|add|subtracting|subtract|multiples of|number,) (\d+)")
FIRST = re.compile(r"(?:from|start at|adding \d+ to) (\d+)")
LAST = re.compile(r"(\d+)\.$")


def expected(prompt: str) -> list[int]:
    text = prompt.lower()
    first, last = int(FIRST.search(text)[1]), int(LAST.search(text)[1])
    step = 2 if re.search("even|odd", text) else int(STEP.search(text)[1])
    return list(range(first, last + 1, step)) if last > first else list(range(first, last - 1, -step))


def check(prompt: str, answer: str) -> bool:
    return answer == ", ".join(map(str, expected(prompt))) + "."

"""Questions that ask to count up or down in steps. They name both ends, and one answer is right."""

from random import Random

from examples.demo.example import TEXTS, Example

SENTENCES = TEXTS["counting"]

SMALL_STEPS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
LARGE_STEPS = [11, 12, 15, 20, 25, 50, 100]


def draw(random: Random) -> tuple[str, str, str]:
    step = random.choice(SMALL_STEPS if random.random() < 0.8 else LARGE_STEPS)
    number = min(random.randint(6, 16), 900 // step + 1)
    span = step * (number - 1)
    low = random.randint(0, 999 - span) if random.random() < 0.25 else random.randint(0, max(99 - span, 20))
    rising = random.random() < 0.6
    numbers = list(range(low, low + span + 1, step))[:: 1 if rising else -1]

    templates = SENTENCES["up_to"] if rising else SENTENCES["down_to"]
    if rising and random.random() < 0.3:
        if step == 2:
            templates = SENTENCES["even_or_odd"]
        elif low and low % step == 0:
            templates = SENTENCES["multiples"]
    parity = "odd" if low % 2 else "even"
    prompt = random.choice(templates).format(first=numbers[0], last=numbers[-1], step=step, parity=parity)
    return prompt, ", ".join(map(str, numbers)) + ".", f"{numbers[0]} {numbers[1] - numbers[0]}"


def check(example: Example, answer: str) -> bool:
    return answer == example.answer

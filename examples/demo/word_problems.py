"""Word problems of two or three steps; a step of the answer is one small calculation with a label."""

import operator
import re
from collections import Counter
from random import Random
from typing import NamedTuple

from examples.demo.example import ALL_NAMES, CONTAINERS, NAMES, PRONOUNS, TEXTS, THINGS, Example

SENTENCES = TEXTS["word_problems"]
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


class Step(NamedTuple):
    label: str
    left: int
    sign: str
    right: int

    @property
    def result(self) -> int:
        return OPERATORS[self.sign](self.left, self.right)

    def __str__(self) -> str:
        return f"{self.label}: {self.left} {self.sign} {self.right} = {self.result}"


FEWER = [text.replace(" more ", " fewer ") for text in SENTENCES["more"]]

Problem = tuple[str, list[Step]]  # the text with its slots, and the solution


def with_changes(random: Random, first: list[str], before: list[Step], total: int, number: int) -> Problem:
    """One of the sentences `first`, changes of the amount, and the question."""
    sentences, steps = [], []
    for _ in range(number):
        if total > 10 and random.random() < 0.5:
            step, templates = Step("Less", total, "-", random.randint(2, min(total - 1, 30))), SENTENCES["loss"]
        else:
            step, templates = Step("More", total, "+", random.randint(2, 30)), SENTENCES["gain"]
        sentences.append(random.choice(templates).replace("{n}", str(step.right)))
        steps.append(step)
        total = step.result
    return " ".join([random.choice(first), *sentences, random.choice(SENTENCES["now"])]), before + steps


def collection(random: Random) -> Problem:
    return with_changes(random, SENTENCES["has"], [], random.randint(5, 50), 2)


def containers(random: Random) -> Problem:
    full = Step("Start", random.randint(2, 9), "*", random.randint(2, 12))
    return with_changes(random, SENTENCES["has_full"], [full], full.result, random.randint(1, 2))


def change(random: Random) -> Problem:
    cost = Step("Cost", random.randint(2, 9), "*", random.randint(2, 12))
    notes = [note for note in (20, 50, 100, 200) if note > cost.result]
    paid = notes[0] if random.random() < 0.7 else random.choice(notes)
    return random.choice(SENTENCES["change"]), [cost, Step("Change", paid, "-", cost.result)]


def two_purchases(random: Random) -> Problem:
    first, second = (Step(label, random.randint(2, 9), "*", random.randint(2, 10)) for label in ("First", "Second"))
    return random.choice(SENTENCES["two_purchases"]), [first, second, Step("Total", first.result, "+", second.result)]


def sharing(random: Random) -> Problem:
    friends, each, kept = random.randint(2, 9), random.randint(2, 12), random.randint(2, 30)
    left = Step("Left", friends * each + kept, "-", kept)
    return random.choice(SENTENCES["sharing"]), [left, Step("Each", left.result, "/", friends)]


def times_as_many(random: Random) -> Problem:
    friend = Step("Friend", random.randint(2, 12), "*", random.randint(2, 5))
    return random.choice(SENTENCES["times_as_many"]), [friend, Step("Together", friend.left, "+", friend.result)]


def more_or_fewer(random: Random) -> Problem:
    first, sign = random.randint(10, 50), random.choice("+-")
    friend = Step("Friend", first, sign, random.randint(2, 30 if sign == "+" else first - 2))
    text = random.choice(SENTENCES["more"] if sign == "+" else FEWER)
    return text, [friend, Step("Together", first, "+", friend.result)]


def book(random: Random) -> Problem:
    read = Step("Read", random.randint(2, 9), "*", random.randint(3, 12))
    left = Step("Left", read.result + random.randint(3, 80), "-", read.result)
    return random.choice(SENTENCES["book"]), [read, left]


def trip(random: Random) -> Problem:
    daily = Step("First", random.randint(2, 9), "*", random.randint(3, 12))
    return random.choice(SENTENCES["trip"]), [daily, Step("Total", daily.result, "+", random.randint(2, 30))]


def saving(random: Random) -> Problem:
    saved = Step("Saved", random.randint(3, 9), "*", random.randint(3, 12))
    text = random.choice(SENTENCES["saving"])
    return text, [saved, Step("Left", saved.result, "-", random.randint(2, saved.result - 2))]


def bus(random: Random) -> Problem:
    people = random.randint(10, 50)
    left = Step("Less", people, "-", random.randint(2, people - 2))
    back = Step("More", left.result, "+", random.randint(2, 30))
    return random.choice(SENTENCES["bus"]), [left, back]


def garden(random: Random) -> Problem:
    planted = Step("Start", random.randint(2, 9), "*", random.randint(3, 12))
    text = random.choice(SENTENCES["garden"])
    return text, [planted, Step("Less", planted.result, "-", random.randint(2, planted.result - 2))]


FAMILIES = {
    collection: 3, containers: 3, change: 2, two_purchases: 1, sharing: 2, times_as_many: 1, more_or_fewer: 1, book: 1,
    trip: 1, saving: 1, bus: 1, garden: 1,
}  # fmt: skip


def draw_cast(random: Random) -> dict[str, str]:
    """The people and things of a problem by the names of their slots."""
    pronoun = random.choice(list(NAMES))
    name = random.choice(NAMES[pronoun])
    friend = random.choice([other for other in ALL_NAMES if other != name])
    thing, other = random.sample(THINGS, 2)
    containers = random.choice(CONTAINERS)
    container = containers.removesuffix("es" if containers == "boxes" else "s")
    he = PRONOUNS[pronoun]
    people = {"name": name, "friend": friend, **he, "He": he["he"].capitalize()}
    things = {"thing": thing, "things": f"{thing}s", "other": other, "others": f"{other}s"}
    return people | things | {"container": container, "containers": containers}


def draw(random: Random) -> tuple[str, str, str]:
    (family,) = random.choices(list(FAMILIES), FAMILIES.values())
    text, steps = family(random)
    answer = "\n".join([*map(str, steps), f"Answer: {steps[-1].result}"])
    key = " ".join(f"{step.left}{step.sign}{step.right}" for step in steps)
    return text.format(*steps, **draw_cast(random)), answer, key


# A line of an answer, whose label may be another.
STEP = re.compile(r"[A-Z][a-z]+: ([0-9]{1,6}) ([+\-*/]) ([0-9]{1,6}) = ([0-9]{1,6})")


def check(example: Example, answer: str) -> bool:
    """Whether all steps are true and use every given number and every result but the last, which is the right one."""
    *lines, last = answer.split("\n")
    steps = [STEP.fullmatch(line) for line in lines]
    if not steps or not all(steps) or len(set(lines)) < len(lines):
        return False
    unused = Counter(int(number) for number in re.findall(r"\d+", example.prompt))
    known = set(unused)
    for step in steps:
        left, sign, right, result = int(step[1]), step[2], int(step[3]), int(step[4])
        is_true = left == result * right if sign == "/" else OPERATORS[sign](left, right) == result
        if not is_true or not {left, right} <= known:
            return False
        known.add(result)
        unused -= Counter([left, right])  # drops what falls to zero or below: a number may be used again
        unused[result] += 1
    return unused == Counter([result]) and last == f"Answer: {result}" == example.answer.split("\n")[-1]

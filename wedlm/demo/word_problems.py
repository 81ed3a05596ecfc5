"""Generates word problems of two or three steps; a step of the answer is one small calculation with a label."""

import operator
from random import Random
from typing import NamedTuple

from wedlm.demo.words import CONTAINERS, NAMES, PRONOUNS, THINGS

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


class Cast(NamedTuple):
    """The people and things of a problem; the fields are the names of slots in the sentences."""

    name: str
    he: str
    him: str
    his: str
    friend: str
    thing: str
    things: str
    other: str
    others: str
    container: str
    containers: str

    @classmethod
    def draw(cls, random: Random) -> "Cast":
        he = random.choice(list(NAMES))
        name = random.choice(NAMES[he])
        friend = random.choice([other for names in NAMES.values() for other in names if other != name])
        (thing, things), (other, others) = random.sample(list(THINGS.items()), 2)
        containers = random.choice(CONTAINERS)
        container = "box" if containers == "boxes" else containers[:-1]
        return cls(
            name,
            **PRONOUNS[he],
            friend=friend,
            thing=thing,
            things=things,
            other=other,
            others=others,
            container=container,
            containers=containers,
        )


GAIN = [
    "{He} finds {n} more.",
    "{He} buys {n} more.",
    "{friend} gives {him} {n} more.",
    "Then {he} gets {n} more from {friend}.",
    "Later {he} collects another {n}.",
]
LOSS = [
    "{He} gives {n} to {friend}.",
    "{He} loses {n} of them.",
    "{He} sells {n} of them.",
    "Then {he} gives {n} away.",
    "{friend} takes {n} of them.",
]
HAS = ["{name} has {n} {things}.", "{name} owns {n} {things}.", "There are {n} {things} in front of {name}."]
HAS_FULL = [
    "{name} has {m} {containers} with {n} {things} in each {container}.",
    "{name} owns {m} {containers}, and there are {n} {things} in every {container}.",
    "{name} fills {m} {containers} with {n} {things} each.",
]
NOW = [
    "How many {things} does {name} have now?",
    "How many {things} does {he} have in the end?",
    "What is the number of {things} that {name} has now?",
]


def changes(random: Random, total: int, number: int) -> list[tuple[str, Step]]:
    result = []
    for _ in range(number):
        if total > 10 and random.random() < 0.5:
            step, sentences = Step("Less", total, "-", random.randint(2, min(total - 1, 30))), LOSS
        else:
            step, sentences = Step("More", total, "+", random.randint(2, 30)), GAIN
        result.append((random.choice(sentences).replace("{n}", str(step.right)), step))
        total = step.result
    return result


def collection(random: Random) -> tuple[str, list[Step]]:
    start = random.randint(5, 50)
    story = changes(random, start, 2)
    sentences = [random.choice(HAS).replace("{n}", str(start)), *(sentence for sentence, _ in story)]
    return " ".join([*sentences, random.choice(NOW)]), [step for _, step in story]


def containers(random: Random) -> tuple[str, list[Step]]:
    full = Step("Start", random.randint(2, 9), "*", random.randint(2, 12))
    story = changes(random, full.result, random.randint(1, 2))
    first = random.choice(HAS_FULL).replace("{m}", str(full.left)).replace("{n}", str(full.right))
    return " ".join([first, *(sentence for sentence, _ in story), random.choice(NOW)]), [
        full,
        *(step for _, step in story),
    ]


def change(random: Random) -> tuple[str, list[Step]]:
    cost = Step("Cost", random.randint(2, 9), "*", random.randint(2, 12))
    notes = [note for note in (20, 50, 100, 200) if note > cost.result]
    left = Step("Change", notes[0] if random.random() < 0.7 else random.choice(notes), "-", cost.result)
    text = random.choice(
        [
            "Each {thing} costs {p} dollars. {name} buys {n} {things} and pays with {m} dollars. "
            "How much change does {he} get?",
            "{name} buys {n} {things} for {p} dollars each and pays with {m} dollars. "
            "How many dollars does {he} get back?",
            "{name} goes to the shop with {m} dollars. {He} buys {n} {things} at {p} dollars each. "
            "How much money does {he} have left?",
        ]
    )
    return fill(text, n=cost.left, p=cost.right, m=left.left), [cost, left]


def two_purchases(random: Random) -> tuple[str, list[Step]]:
    first = Step("First", random.randint(2, 9), "*", random.randint(2, 10))
    second = Step("Second", random.randint(2, 9), "*", random.randint(2, 10))
    text = random.choice(
        [
            "{name} buys {n} {things} for {p} dollars each and {m} {others} for {q} dollars each. "
            "How much does {he} pay in all?",
            "Each {thing} costs {p} dollars and each {other} costs {q} dollars. "
            "{name} buys {n} {things} and {m} {others}. What is the total price?",
        ]
    )
    text = fill(text, n=first.left, p=first.right, m=second.left, q=second.right)
    return text, [first, second, Step("Total", first.result, "+", second.result)]


def sharing(random: Random) -> tuple[str, list[Step]]:
    friends, each, kept = random.randint(2, 9), random.randint(2, 12), random.randint(2, 30)
    left = Step("Left", friends * each + kept, "-", kept)
    text = random.choice(
        [
            "{name} has {a} {things}. {He} keeps {b} and shares the rest equally among {n} friends. "
            "How many {things} does each friend get?",
            "There are {a} {things}. {name} takes {b} of them, and {n} children share the others equally. "
            "How many {things} does each child get?",
            "{name} sorts {a} {things}. {b} are broken. The good ones go into {n} {containers}, "
            "the same number in each. How many {things} are in each {container}?",
        ]
    )
    text = fill(text, a=left.left, b=kept, n=friends)
    return text, [left, Step("Each", left.result, "/", friends)]


def times_as_many(random: Random) -> tuple[str, list[Step]]:
    product = Step("Friend", random.randint(2, 12), "*", random.randint(2, 5))
    text = random.choice(
        [
            "{name} has {a} {things}. {friend} has {k} times as many. How many {things} do they have together?",
            "{friend} has {k} times as many {things} as {name}, who has {a}. "
            "How many {things} do the two have together?",
        ]
    )
    text = fill(text, a=product.left, k=product.right)
    return text, [product, Step("Together", product.left, "+", product.result)]


def more_or_fewer(random: Random) -> tuple[str, list[Step]]:
    first, sign = random.randint(10, 50), random.choice("+-")
    other = Step("Friend", first, sign, random.randint(2, 30 if sign == "+" else first - 2))
    text = random.choice(
        [
            "{name} has {a} {things}. {friend} has {b} {more} than {name}. How many {things} do they have together?",
            "{friend} has {b} {more} {things} than {name}, who has {a}. How many {things} do the two have together?",
        ]
    )
    text = fill(text, a=first, b=other.right, more="more" if sign == "+" else "fewer")
    return text, [other, Step("Together", first, "+", other.result)]


def book(random: Random) -> tuple[str, list[Step]]:
    read = Step("Read", random.randint(2, 9), "*", random.randint(3, 12))
    left = Step("Left", read.result + random.randint(3, 80), "-", read.result)
    text = random.choice(
        [
            "A book has {a} pages. {name} reads {n} pages a day for {d} days. How many pages are left?",
            "{name} reads a book of {a} pages. For {d} days {he} reads {n} pages every day. "
            "How many pages does {he} still have to read?",
        ]
    )
    return fill(text, a=left.left, d=read.left, n=read.right), [read, left]


def trip(random: Random) -> tuple[str, list[Step]]:
    daily = Step("First", random.randint(2, 9), "*", random.randint(3, 12))
    text = random.choice(
        [
            "{name} cycles {n} km a day for {d} days and then {e} km more. How many km is that in all?",
            "On a trip {name} walks {n} km every day for {d} days. On the last day {he} walks another {e} km. "
            "How long is the trip in km?",
        ]
    )
    total = Step("Total", daily.result, "+", random.randint(2, 30))
    return fill(text, n=daily.right, d=daily.left, e=total.right), [daily, total]


def saving(random: Random) -> tuple[str, list[Step]]:
    saved = Step("Saved", random.randint(3, 9), "*", random.randint(3, 12))
    text = random.choice(
        [
            "{name} saves {n} dollars a week for {d} weeks. Then {he} spends {e} dollars. How much money is left?",
            "Every week for {d} weeks {name} puts {n} dollars into a tin. {He} takes out {e} dollars "
            "for some {things}. How many dollars are in the tin now?",
        ]
    )
    left = Step("Left", saved.result, "-", random.randint(2, saved.result - 2))
    return fill(text, n=saved.right, d=saved.left, e=left.right), [saved, left]


def bus(random: Random) -> tuple[str, list[Step]]:
    people = random.randint(10, 50)
    left = Step("Less", people, "-", random.randint(2, people - 2))
    back = Step("More", left.result, "+", random.randint(2, 30))
    text = random.choice(
        [
            "There are {a} people on a bus. At the next stop {b} get off and {c} get on. "
            "How many people are on the bus now?",
            "A bus leaves with {a} people. At the market {b} people leave the bus and {c} enter. "
            "How many people are on it now?",
        ]
    )
    return fill(text, a=people, b=left.right, c=back.right), [left, back]


def garden(random: Random) -> tuple[str, list[Step]]:
    planted = Step("Start", random.randint(2, 9), "*", random.randint(3, 12))
    text = random.choice(
        [
            "A garden has {m} rows of trees with {n} trees in each row. {e} trees are cut down. "
            "How many trees are left?",
            "{name} plants {m} rows of {n} trees. A storm breaks {e} of the trees. How many trees still stand?",
        ]
    )
    left = Step("Less", planted.result, "-", random.randint(2, planted.result - 2))
    return fill(text, m=planted.left, n=planted.right, e=left.right), [planted, left]


FAMILIES = {
    collection: 3,
    containers: 3,
    change: 2,
    two_purchases: 1,
    sharing: 2,
    times_as_many: 1,
    more_or_fewer: 1,
    book: 1,
    trip: 1,
    saving: 1,
    bus: 1,
    garden: 1,
}


def fill(text: str, **slots: int | str) -> str:
    """Fills the given slots and leaves the others in the text."""
    for name, value in slots.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def draw(random: Random) -> tuple[str, str, str]:
    (family,) = random.choices(list(FAMILIES), FAMILIES.values())
    text, steps = family(random)
    cast = Cast.draw(random)
    prompt = text.format(**cast._asdict(), He=cast.he.capitalize())
    answer = "\n".join([*map(str, steps), f"Answer: {steps[-1].result}"])
    return prompt, answer, " ".join(f"{step.left}{step.sign}{step.right}" for step in steps)

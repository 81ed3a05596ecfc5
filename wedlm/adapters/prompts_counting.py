"""Prompts whose answer is a sequence: numbers, days, months, letters, tables, patterns."""

from random import Random

from wedlm.adapters.prompts_phrases import items

LAYOUTS = [
    "",
    "",
    "",
    " Separate the numbers with commas.",
    " Write one number on each line.",
    " Write them in one line.",
    " Write the numbers only.",
]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SERIES = items("""
the even numbers; the odd numbers; the square numbers; the cube numbers; the powers of two; the powers of three
the Fibonacci numbers; the prime numbers; the triangular numbers; the multiples of three; the multiples of four
the factorials; the powers of ten; the multiples of seven; the multiples of nine; the multiples of eleven
the multiples of twelve
""")
LINES = items("""
I will practise every day; Slow and steady wins the race; Please close the door; Good morning; All work and no play
Step by step; Hello, world!; Practice makes perfect; The bus is late again; I love sunny days; Water the plants
Keep calm and count
""")
LABELS = items(
    "Item; Step; Chapter; Row; Player; Room; Day; Lesson; Table; Level; Seat; Question; Week; Page; Team; Part; "
    "Figure; Task"
)
LANGUAGES = ["French", "German", "Spanish", "Italian"]


def up_or_down(random: Random) -> str:
    step = random.choice([1, 1, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 15, 20, 25, 50, 100])
    first = random.choice([0, 1, 1, random.randrange(100), step, random.randrange(100) * 10])
    last = first + step * random.randint(6, 40)
    if random.random() < 0.35:
        first, last = last, first
    direction = "down " if first > last else random.choice(["", "up "])
    by = "" if step == 1 else f" by {step}" if random.random() < 0.5 else f" in steps of {step}"
    request = random.choice(
        [
            f"Count {direction}from {first} to {last}{by}.",
            f"Please count {direction}from {first} to {last}{by}.",
            f"Can you count {direction}from {first} to {last}{by}?",
            f"Write the numbers from {first} {direction}to {last}{by}.",
            f"Start at {first} and count {direction}to {last}{by}.",
        ]
    )
    return request + random.choice(LAYOUTS)


def table(random: Random) -> str:
    number, last = random.randint(2, 25), random.choice([10, 10, 10, 12, 15, 20])
    return random.choice(
        [
            f"Write the multiplication table of {number} up to {number} x {last}.",
            f"Write the {number} times table, from 1 to {last}.",
            f"What are the first {last} multiples of {number}?",
            f"List the multiples of {number} up to {number * last}.",
            f"Show {number} times 1, {number} times 2, and so on up to {number} times {last}.",
        ]
    )


def calendar(random: Random) -> str:
    names, unit = random.choice([(DAYS, "days of the week"), (MONTHS, "months of the year")])
    first, number = random.choice(names), random.randint(5, 20)
    language, kind = random.choice(LANGUAGES), random.choice(LABELS).lower()
    return random.choice(
        [
            f"List the {unit}, starting with {first}.",
            f"List the {unit} backwards, starting with {first}.",
            f"Name the {unit} in {language}, starting with {first}.",
            f"Write the next {number} {unit.split()[0]} after {first}.",
            f"Make a table with the {unit}, from {first} on, and the number of letters of each name.",
            f"Write the {unit} from {first} on as a numbered list.",
            f"Write the {unit} from {first} on as a Python list.",
            f"Make an empty plan: one line for each of the {unit}, starting with {first}, with a {kind} number behind "
            "it.",
        ]
    )


def years(random: Random) -> str:
    first, step = random.randint(1700, 2040), random.choice([1, 2, 4, 4, 5, 10])
    last = first + step * random.randint(6, 20)
    return random.choice(
        [
            f"List the leap years between {first} and {last}.",
            f"List the years from {first} to {last} in steps of {step}.",
            f"Count from the year {first} to the year {last}, {step} years at a time.",
        ]
    )


def letters(random: Random) -> str:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    first = random.randrange(0, 16)
    start, end = alphabet[first], alphabet[random.randrange(first + 6, 26)]
    return random.choice(
        [
            f"Write the letters from {start} to {end}.",
            f"Write the alphabet from {start} to {end} in lower case, one letter on each line.",
            f"Write the letters from {end} back to {start}.",
            f"Write the letters from {start} to {end}, each with its number in the alphabet.",
            f"Name an animal for each letter from {start} to {end}.",
            f"Name a fruit, a vegetable or a dish for each letter from {start} to {end}.",
            f"Write the NATO spelling alphabet from {start} to {end}.",
            f"List every second letter of the alphabet from {start} to {end}.",
        ]
    )


def series(random: Random) -> str:
    number, name = random.randint(5, 25), random.choice(SERIES)
    return random.choice(
        [
            f"Write the first {number} of {name}.",
            f"List {name} up to {random.randint(3, 40) * 5}.",
            f"What are the first {number} of {name}?",
            f"Write the first {number} of {name} as a Python list.",
            f"Make a table of the first {number} of {name}, numbered from 1.",
        ]
    )


def pattern(random: Random) -> str:
    number, line, label = random.randint(4, 25), random.choice(LINES), random.choice(LABELS)
    first, step = random.randint(1, 60), random.randint(2, 15)
    terms = ", ".join(str(first + step * place) for place in range(4))
    return random.choice(
        [
            f'Write "{line}" {number} times, one below the other.',
            f'Write "{line}" {number} times and number the lines.',
            f'Write a list from "{label} {first}" to "{label} {first + number}".',
            f"Continue this sequence with {number} more numbers: {terms}",
            f"Which {number} numbers come next: {terms}?",
            f"Write a triangle of stars with {min(number, 12)} rows.",
            f"Write the numbers from {first} to {first + number} in words.",
            f"Write the numbers from {first} to {first + number}, each with its square.",
            f"Write the numbers from {first} to {first + number} as binary numbers.",
            f"Write the numbers from {min(first, 30)} to {min(first, 30) + number} as Roman numerals.",
            f"Write the numbers from {first} to {first + number} in {random.choice(LANGUAGES)}.",
            f"Play FizzBuzz from {first} to {first + number}.",
            f"Count from {first} to {first + number} and write after each number whether it is odd or even.",
            f"Write the ordinal numbers from {first} to {first + number}, as in 1st, 2nd, 3rd.",
        ]
    )


def clock(random: Random) -> str:
    hour, step = random.randint(5, 14), random.choice([5, 10, 15, 20, 30])
    return random.choice(
        [
            f"List the times from {hour}:00 to {hour + random.randint(1, 5)}:00 in steps of {step} minutes.",
            f"A bus leaves every {step} minutes, starting at {hour}:00. List the first {random.randint(6, 15)} "
            "departures.",
            f"Write a timetable from {hour}:00 to {hour + 6}:00 with one empty line for each hour.",
        ]
    )


WAYS = [
    up_or_down,
    up_or_down,
    up_or_down,
    up_or_down,
    table,
    table,
    calendar,
    years,
    letters,
    series,
    pattern,
    pattern,
    pattern,
    clock,
]


def draw(random: Random) -> tuple[str, str]:
    text = random.choice(WAYS)(random)
    return text, text

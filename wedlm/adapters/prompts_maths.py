"""Prompts that ask for a calculation, from sums to word problems."""

from random import Random

from wedlm.adapters.prompts_phrases import items

NAMES = items(
    "Anna; Ben; Carla; David; Elif; Farid; Grace; Hugo; Ines; Jonas; Keiko; Liam; Mara; Nils; Olga; Pablo; Ravi; "
    "Sara; Tom; Yusuf; Zoe; Amina"
)
THINGS = items(
    "apples; pencils; marbles; stickers; books; cards; eggs; cookies; coins; stamps; balloons; oranges; shells; "
    "bottles; seeds; buttons"
)
GOODS = items(
    "notebook; ticket; cup of tea; bag of rice; T-shirt; candle; map; sandwich; pair of socks; toy car; flower pot; "
    "umbrella"
)
MONEY = ["dollars", "euros", "pounds"]
# From, to, and the numbers that may be asked for.
UNITS = items("""
kilometres|miles; miles|kilometres; metres|feet; feet|metres; inches|centimetres; centimetres|inches
kilograms|pounds; pounds|kilograms; degrees Celsius|degrees Fahrenheit; degrees Fahrenheit|degrees Celsius
hours|minutes; minutes|hours; days|hours; weeks|days; litres|millilitres; gallons|litres; grams|kilograms
tonnes|kilograms; hours|seconds; kilobytes|bytes; square metres|square feet
""")
STEPS = [
    "",
    "",
    "",
    " Show each step.",
    " Show your work.",
    " Explain how you found it.",
    " Give the result only.",
    " Check your result.",
]


def arithmetic(random: Random) -> str:
    a, b, c = random.randint(2, 400), random.randint(2, 99), random.randint(2, 20)
    term = random.choice(
        [
            f"{a} + {b}",
            f"{a + b} - {b}",
            f"{b} x {c}",
            f"{b * c} / {c}",
            f"{a} + {b} x {c}",
            f"({a} + {b}) x {c}",
            f"{a} + {b} - {c}",
        ]
        + [
            f"{a} x {c}",
            f"{c} x {c} + {b}",
            f"{a * 10} - {b} x {c}",
            f"{b}.5 + {c}.25",
            f"{c} to the power of {random.randint(2, 4)}",
        ]
    )
    return random.choice(
        ["What is {}?", "Calculate {}.", "Compute {}.", "How much is {}?", "Work out {}.", "Solve step by step: {}."]
    ).format(term)


def sums(random: Random) -> str:
    numbers = [random.randint(1, 90) for _ in range(random.randint(3, 8))]
    listed = ", ".join(map(str, numbers))
    return random.choice(
        [
            f"Add these numbers: {listed}.",
            f"What is the average of {listed}?",
            f"What is the median of {listed}?",
            f"Sort these numbers from small to large: {listed}.",
            f"Sort these numbers from large to small: {listed}.",
            f"Which of these numbers are even: {listed}?",
            f"Double each of these numbers: {listed}.",
            f"What is the largest and what is the smallest of these numbers: {listed}?",
            f"What is the sum of the odd numbers among {listed}?",
        ]
    )


def percentages(random: Random) -> str:
    share, whole = random.choice([5, 10, 12, 15, 20, 25, 30, 40, 60, 75]), random.randint(2, 90) * 10
    good, money = random.choice(GOODS), random.choice(MONEY)
    return random.choice(
        [
            f"What is {share}% of {whole}?",
            f"What is {share} percent of {whole}?",
            f"Increase {whole} by {share}%.",
            f"Decrease {whole} by {share}%.",
            f"A jacket costs {whole} {money}. It is {share}% off. What does it cost now?",
            f"The price of a {good} rises by {share}% from {whole // 10} {money}. What is the new price?",
            f"{whole * share // 100} of {whole} people voted yes. What percentage is that?",
            f"A bill is {whole} {money}. How much is a tip of {share}%?",
            f"I put {whole * 10} {money} into an account at {share / 5:g}% interest a year. How much is it after two "
            "years?",
        ]
    )


def equations(random: Random) -> str:
    letter, a, x, b = random.choice("xyznt"), random.randint(2, 12), random.randint(-9, 20), random.randint(1, 40)
    c = random.randint(1, a - 1)
    sign = random.choice([1, -1])
    left = f"{a}{letter} {'+' if sign > 0 else '-'} {b}"
    equation = random.choice(
        [
            f"{left} = {a * x + sign * b}",
            f"{a}({letter} + {b}) = {a * (x + b)}",
            f"{left} = {c}{letter} + {(a - c) * x + sign * b}" if c > 1 else f"{letter} / {a} = {x}",
            f"{letter} + {b} = {x + b}",
            f"{letter}^2 = {x * x}",
        ]
    )
    return random.choice(
        [
            "Solve {}.",
            f"Solve for {letter}: {{}}.",
            f"What is {letter} if {{}}?",
            "Solve the equation {} step by step.",
        ]
    ).format(equation)


def conversions(random: Random) -> str:
    first, second = random.choice(UNITS).split("|")
    number = random.choice([random.randint(2, 30), random.randint(2, 60) * 5, random.randint(2, 30) + 0.5])
    return random.choice(
        [
            f"Convert {number} {first} to {second}.",
            f"How many {second} are {number} {first}?",
            f"What is {number} {first} in {second}?",
            f"Make a table that converts 1, 2, 5, 10 and {number} {first} to {second}.",
        ]
    )


def stories(random: Random) -> str:
    name, other = random.sample(NAMES, 2)
    thing, good, money = random.choice(THINGS), random.choice(GOODS), random.choice(MONEY)
    a, b, c = random.randint(12, 90), random.randint(2, 11), random.randint(2, 9)
    return random.choice(
        [
            f"{name} has {a} {thing} and gives {b} of them to {other}. How many {thing} does {name} have left?",
            f"{name} has {a} {thing}, and {other} has {b} more. How many {thing} do they have together?",
            f"{name} puts {a * b} {thing} into {b} boxes, the same number into each. How many {thing} are in one box?",
            f"A {good} costs {b} {money}. {name} buys {c} of them and pays with {b * c + a} {money}. How much change "
            f"does {name} get?",
            f"{name} reads {a} pages a day. How many pages are that in {b} days?",
            f"{name} is {b} years older than {other}. {other} is {a} years old. How old will {name} be in {c} years?",
            f"A train travels {a + 40} kilometres in one hour. How far does it travel in {c} hours?",
            f"A car drives {c * (a + 20)} kilometres in {c} hours. What is its average speed?",
            f"{name} earns {b + 9} {money} an hour and works {a} hours a month. How much does {name} earn in {c} "
            "months?",
            f"{name} saves {b} {money} a week. How many weeks does it take to save {b * a} {money}?",
            f"There are {a} {thing} in a basket. {name} takes half of them and {other} takes {b}. How many are left?"
            if a % 2 == 0
            else f"{c} friends share {a * c} {thing} equally. How many does each of them get?",
            f"{name} bakes {b} trays with {c * 2} {thing} each for a school play and drops {c} of them. How many can "
            "be used?",
            f"A tank holds {a * 10} litres. Every minute {c * 5} litres flow out. After how many minutes is it empty?",
            f"{name} starts work at {random.randint(6, 10)}:{random.choice(['00', '15', '30'])} and works for {c} "
            f"hours and 45 minutes. When is {name} done?",
            f"In a class of {a} children there are {b + 1} who play chess. How many do not play chess?",
            f"{name} runs {c} kilometres on Monday, {b} on Wednesday and {c + 3} on Saturday. How far does {name} run "
            "in four such weeks?",
            f"A recipe for {c} people needs {c * 50} grams of flour. How much flour is needed for {b} people?",
            f"{name} and {other} share {a * 2} {thing} so that {name} gets {b * 2} more. How many does each of them "
            "get?",
        ]
    )


def geometry(random: Random) -> str:
    a, b = random.randint(2, 30), random.randint(2, 30)
    return random.choice(
        [
            f"What is the area of a rectangle that is {a} cm long and {b} cm wide?",
            f"What is the perimeter of a rectangle with sides of {a} m and {b} m?",
            f"What is the area of a triangle with a base of {a} cm and a height of {b} cm?",
            f"What is the circumference of a circle with a radius of {a} cm?",
            f"What is the area of a circle with a diameter of {2 * a} m?",
            f"What is the volume of a box of {a} cm by {b} cm by {random.randint(2, 9)} cm?",
            f"A square has an area of {a * a} square metres. How long is one side?",
            f"Two angles of a triangle are {a + 30} and {b + 40} degrees. How large is the third?",
            f"How many tiles of {random.choice([10, 20, 25, 50])} cm by {random.choice([10, 20, 50])} cm cover a "
            f"floor of {a} m by {b} m?",
        ]
    )


def numbers(random: Random) -> str:
    n, m = random.randint(12, 200), random.randint(12, 90)
    return random.choice(
        [
            f"Is {n} a prime number? Explain why or why not.",
            f"List all divisors of {n}.",
            f"Write {n} as a product of prime numbers.",
            f"What is the greatest common divisor of {n} and {m}?",
            f"What is the least common multiple of {n % 20 + 2} and {m % 15 + 2}?",
            f"Round {n}.{m} to the nearest whole number and to one decimal place.",
            f"Write {n} in binary.",
            f"What is {n % 9 + 1}/{n % 9 + 4} + {m % 5 + 1}/{m % 5 + 3}?",
            f"Write {m} / 100 as a fraction in lowest terms.",
            f"What is the remainder of {n * 7} divided by {m % 12 + 3}?",
            f"I throw {n % 3 + 1} dice. How likely is it that all of them show {m % 6 + 1}?",
            f"A bag holds {n % 8 + 2} red and {m % 9 + 2} blue balls. How likely is it to draw a red one?",
            f"In how many ways can {n % 5 + 3} people stand in a row?",
            f"Which is larger, {n % 7 + 1}/{n % 7 + 3} or {m % 6 + 1}/{m % 6 + 2}?",
        ]
    )


WAYS = [
    arithmetic,
    arithmetic,
    sums,
    percentages,
    equations,
    conversions,
    stories,
    stories,
    stories,
    geometry,
    numbers,
]


def draw(random: Random) -> tuple[str, str]:
    problem = random.choice(WAYS)(random)
    return problem, problem + random.choice(STEPS)

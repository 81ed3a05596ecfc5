"""Prompts for JSON: from rows, from sentences, by keys, and back."""

import json
from random import Random
from typing import Any

from wedlm.adapters.prompts_phrases import items

FIRST_NAMES = items("""
Ada; Bruno; Clara; Dmitri; Elena; Felix; Greta; Hassan; Irene; Jakob; Kira; Leon; Mila; Noah; Oscar; Petra; Quentin
Rosa; Samir; Tilda; Ulrich; Vera; Wanda; Yara; Zeno; Alma; Boris; Chiara; Daniel; Esther
""")
LAST_NAMES = items("""
Abbott; Becker; Costa; Dahl; Evans; Fischer; Grant; Huber; Ivanov; Jensen; Keller; Lopez; Moreau; Novak; Olsen
Parker; Quinn; Rossi; Schmidt; Tanaka; Ueda; Vogel; Weber; Young; Zimmer
""")
CITIES = items("""
Lisbon; Oslo; Bern; Kyoto; Dublin; Porto; Vienna; Hamburg; Toronto; Sydney; Madrid; Prague; Helsinki; Lima; Nairobi
Boston; Lyon; Turin
""")
# The fields of records, and for each field its values, or the smallest and the largest number.
RECORDS = {
    "person": {
        "name": FIRST_NAMES,
        "age": (18, 90),
        "city": CITIES,
        "job": items("nurse; teacher; baker; pilot; plumber; lawyer; cook"),
    },
    "employee": {
        "first_name": FIRST_NAMES,
        "last_name": LAST_NAMES,
        "department": items("sales; support; research; finance; design"),
        "salary": (28000, 95000),
        "remote": [True, False],
    },
    "book": {
        "title": items(
            "The Quiet Harbour; Winter Maps; A Thousand Doors; The Glass Orchard; Salt and Stone; Letters North; Low "
            "Tide"
        ),
        "author": LAST_NAMES,
        "year": (1950, 2024),
        "pages": (90, 800),
    },
    "product": {
        "name": items(
            "desk lamp; office chair; water bottle; backpack; keyboard; headphones; notebook; coffee mug; umbrella; "
            "rain jacket"
        ),
        "price": (3, 250),
        "stock": (0, 90),
        "color": items("black; white; red; green; blue; grey"),
    },
    "city": {"name": CITIES, "population": (20000, 3000000), "river": [True, False], "founded": (900, 1890)},
    "film": {
        "title": items(
            "Night Train; The Last Orchard; Blue Summer; Paper Moons; Crossing; The Lighthouse Keeper; Echoes"
        ),
        "director": LAST_NAMES,
        "year": (1960, 2024),
        "genre": items("drama; comedy; thriller; documentary; animation"),
        "rating": (3, 10),
    },
    "student": {
        "name": FIRST_NAMES,
        "grade": (1, 12),
        "subject": items("maths; biology; history; music; art; physics"),
        "passed": [True, False],
    },
    "order": {
        "id": (1000, 9999),
        "customer": LAST_NAMES,
        "items": (1, 12),
        "total": (5, 900),
        "status": items("open; paid; shipped; returned"),
    },
    "flight": {
        "number": items("KL204; BA77; LX318; AF1290; SK455; TP83"),
        "from": CITIES,
        "to": CITIES,
        "seats": (40, 380),
        "delayed": [True, False],
    },
    "plant": {
        "name": items("basil; fern; cactus; orchid; lavender; tomato; ivy; mint"),
        "height_cm": (5, 200),
        "light": items("sun; half shade; shade"),
        "water_per_week": (1, 7),
    },
    "event": {
        "title": items("book fair; spring concert; open day; chess evening; flea market; science night; yoga class"),
        "city": CITIES,
        "month": items("March; April; May; June; September; October"),
        "guests": (10, 900),
    },
    "car": {
        "brand": items("Arden; Velo; Nordica; Kestrel; Solis"),
        "year": (1995, 2024),
        "km": (0, 220000),
        "electric": [True, False],
    },
    "song": {
        "title": items("Slow Rain; Harbour Lights; Ninety Miles; Old Shoes; Paper Boats"),
        "artist": FIRST_NAMES,
        "seconds": (120, 420),
    },
    "pet": {
        "name": items("Momo; Rex; Luna; Pixel; Biscuit; Nala"),
        "species": items("dog; cat; rabbit; parrot; hamster"),
        "age": (1, 15),
        "weight_kg": (1, 9),
    },
    "server": {
        "host": items("alpha; beta; gamma; delta; mail; backup"),
        "cores": [2, 4, 8, 16],
        "memory_gb": (4, 128),
        "running": [True, False],
    },
    "room": {
        "number": (100, 520),
        "beds": (1, 4),
        "view": items("sea; garden; street; mountains"),
        "price": (45, 310),
        "free": [True, False],
    },
}
# Objects that are asked for by their keys.
OBJECTS = items("""
a user profile|username, email, joined, followers; a recipe|title, servings, ingredients, steps
a blog post|title, author, date, tags; a weather report|city, temperature, humidity, forecast
a bank transfer|sender, recipient, amount, currency, date; a game character|name, class, level, health, inventory
a quiz question|question, choices, answer; a film review|film, stars, text; a shopping list|store, items, budget
a train ticket|from, to, departure, seat, price; a calendar entry|title, start, end, place
a bicycle|brand, gears, color, price; a restaurant|name, cuisine, address, opening_hours
a country|name, capital, languages, population; a software package|name, version, license, dependencies
a house for sale|street, rooms, area, price; a job offer|title, company, salary, skills
a medical appointment|patient, doctor, date, reason; a football team|name, city, players, trophies
a school class|teacher, room, students; a song|title, artist, album, length; a planet|name, moons, radius, has_rings
a laptop|model, cpu, memory, storage, price; a support ticket|id, subject, priority, status, messages
a workout plan|day, exercises, minutes; a hotel booking|guest, nights, room, total
a configuration file|host, port, debug, log_level; a music playlist|name, owner, songs
a sensor reading|sensor, time, value, unit; a chess player|name, country, rating
a parcel|weight, sender, receiver, status; a library card|holder, number, expires, books
""")
ASK_JSON = [
    "Turn this into JSON:",
    "Convert this to JSON:",
    "Write this as JSON:",
    "Convert these records to a JSON array of objects:",
    "Make a JSON array from these rows:",
    "Write the following data as JSON, one object for each entry:",
    "Please give me this data as JSON, with nothing else around it.",
    "Extract the data as JSON:",
]
ASK_OBJECT = [
    "Write a JSON object for {thing} with the keys {keys}.",
    "Make up {thing} as JSON. Use the keys {keys}.",
    "Give me an example of {thing} as a JSON object. Keys: {keys}.",
    "Create a JSON array of {n} objects. Each of them is {thing} with {keys}.",
    "Generate sample data: {n} times {thing}, as JSON with the keys {keys}.",
    "I need test data for {thing}. Return JSON with {keys} and no other text.",
]
ASK_BACK = [
    "Write this JSON as a table:",
    "Convert this JSON to CSV:",
    "Convert this JSON to YAML:",
    "Describe this JSON in plain sentences:",
    "Format this JSON with an indentation of two spaces:",
    "Turn this JSON into a list of Python dictionaries:",
    "Turn this JSON into a Markdown table:",
    "Write SQL INSERT statements for this JSON:",
    "Sort this JSON array by {field}:",
    "Return only the field {field} of each object, as a JSON array:",
    "Add a field id to each object of this JSON, counting from 1:",
    "Rename the key {field} to {field}_value in this JSON:",
    "Remove the key {field} from this JSON:",
]


def record(random: Random, kind: str) -> dict[str, Any]:
    fields = RECORDS[kind]
    return {
        name: random.choice(values) if isinstance(values, list) else random.randint(*values)
        for name, values in fields.items()
    }


def records(random: Random) -> tuple[str, list[dict[str, Any]]]:
    """The name of a kind, and one to five records with some of its fields."""
    kind = random.choice(list(RECORDS))
    number = random.choice([1, 2, 2, 3, 3, 4, 5])
    names = list(RECORDS[kind])
    left_out = random.choice(names[1:]) if len(names) > 3 and random.random() < 0.5 else None
    return kind, [
        {name: value for name, value in record(random, kind).items() if name != left_out} for _ in range(number)
    ]


def plain(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def rows(random: Random, data: list[dict[str, Any]]) -> str:
    """The records as people write them down: pairs, CSV, a table, lines with dashes."""
    way = random.randrange(4)
    if way == 0:
        return "; ".join(", ".join(f"{name}: {plain(value)}" for name, value in row.items()) for row in data)
    if way == 1:
        return "\n".join([",".join(data[0]), *(",".join(map(plain, row.values())) for row in data)])
    if way == 2:
        return "\n".join([" | ".join(data[0]), *(" | ".join(map(plain, row.values())) for row in data)])
    return "\n".join("- " + ", ".join(f"{name} {plain(value)}" for name, value in row.items()) for row in data)


def sentence(random: Random) -> str:
    """A request for the data of one or two sentences as JSON."""
    name, other = random.sample(FIRST_NAMES, 2)
    last, city, number = random.choice(LAST_NAMES), random.choice(CITIES), random.randint(2, 80)
    job, good = random.choice(RECORDS["person"]["job"]), random.choice(RECORDS["product"]["name"])
    text, keys = random.choice(
        [
            (
                f"{name} {last} is {number + 10} years old, lives in {city} and works as a {job}.",
                "name, age, city, job",
            ),
            (
                f"{name} ordered {number} pieces of the {good} on 3 May and wants them sent to {city}.",
                "customer, product, quantity, date, city",
            ),
            (
                f"The meeting with {name} and {other} is on Friday at {number % 9 + 9} o'clock in {city}.",
                "people, day, time, place",
            ),
            (
                f"The {good} costs {number} euros, comes in black and white, and there are {number + 7} of them left.",
                "product, price, colors, stock",
            ),
            (
                f"{name} from {city} won the race in {number + 20} minutes; {other} was second, {number % 7 + 1} "
                "minutes later.",
                "winner, city, minutes, second",
            ),
            (
                f"Dr. {last} sees patients in {city} from Monday to Thursday between 8:00 and {number % 6 + 12}:30.",
                "doctor, city, days, opens, closes",
            ),
            (
                f"Train {number + 100} leaves {city} at {number % 12 + 6}:15 from platform {number % 9 + 1} and is "
                f"{number % 20} minutes late.",
                "train, from, departure, platform, delay",
            ),
            (
                f"{name} and {other} have two children and {number % 4 + 1} cats, and they moved to {city} in "
                f"{1950 + number % 70}.",
                "parents, children, cats, city, year",
            ),
            (
                f"In {1940 + number} the painter {name} {last} opened a school in {city} with {number} pupils.",
                "year, painter, city, pupils",
            ),
        ]
    )
    return random.choice(
        [
            f"Turn this sentence into JSON with the keys {keys}: {text}",
            f"Extract {keys} from this text as a JSON object.\n\n{text}",
            f"{text}\n\nWrite this as a JSON object.",
            f"Read the text and answer with JSON only (keys: {keys}).\n\n{text}",
        ]
    )


def computed(random: Random) -> str:
    number, first = random.randint(3, 12), random.randint(1, 40)
    name, kind = random.choice(FIRST_NAMES), random.choice(list(RECORDS))
    return random.choice(
        [
            f"Write a JSON array with the numbers from {first} to {first + number}.",
            f"Write a JSON object that maps each number from {first} to {first + number} to its square.",
            f"Write a JSON array of {number} objects with the keys id and name, for {number} people of your choice.",
            f"Write a JSON array of the first {number} months, each with its name and its number of days.",
            f"Write a JSON object with {number} English words as keys and their Spanish translations as values.",
            f"Write a nested JSON object for {name}'s week: each day has a list of up to {number % 4 + 2} plans.",
            f"Write a JSON schema for the type {kind} with the fields {', '.join(RECORDS[kind])}.",
            f"Write a Python dictionary for the type {kind} with the fields {', '.join(RECORDS[kind])}.",
            f"List {number} countries as JSON, each with its capital and continent.",
        ]
    )


def draw(random: Random) -> tuple[str, str]:
    way = random.randrange(10)
    if way < 4:
        text = f"{random.choice(ASK_JSON)}\n\n{rows(random, records(random)[1])}"
    elif way < 6:
        text = sentence(random)
    elif way < 8:
        thing, _, keys = random.choice(OBJECTS).partition("|")
        return thing, random.choice(ASK_OBJECT).format(
            thing=thing, keys=keys, n=random.choice(["two", "three", "four", "five"])
        )
    elif way == 8:
        kind, data = records(random)
        data = data[:3]
        field = random.choice(list(data[0]))
        text = f"{random.choice(ASK_BACK).format(field=field)}\n\n{json.dumps(data)}"
    else:
        text = computed(random)
    return text, text

"""Short stories from a grammar: sentences vary freely, and people, thing and place stay the same."""

import re
from random import Random

from examples.demo.words import ALL_NAMES, COLORS, HEROES, NAMES, OBJECTS, PLACES, PRONOUNS

PROMPTS = [
    "Write a short story about {hero}, {a} {role}, and {an} {object} at the {place}.",
    "Tell me a story: {a} {role} called {hero}, {an} {object}, and the {place}.",
    "Please write a little story about {a} {role} named {hero}. It has {an} {object} and the {place} in it.",
    "I would like a story about {hero} the {role} and {an} {object} from the {place}.",
    "Story time! {hero} is {a} {role}. There is {an} {object} at the {place}.",
    "Make up a short tale with {hero}, {a} {role}, at the {place}, and {an} {object}.",
    "Can you tell a story in which {hero}, {a} {role}, has to do with {an} {object} at the {place}?",
    "Invent a story. Hero: {hero}, {a} {role}. Thing: {an} {object}. Place: the {place}.",
]

MOODS = "brave careful cheerful clever curious gentle kind patient proud quiet shy".split()
WEATHERS = "bright cold dark foggy quiet rainy snowy stormy sunny warm windy".split()
TIMES = "afternoon day evening morning night".split()
LOOKS = "beautiful broken dusty heavy old shiny small strange tiny".split()
FRIENDS = ["an old friend", "a neighbor", "a cousin", "a good friend", "a stranger"]
FOOD = "bread cake cheese honey soup tea".split()
FEELINGS = "afraid angry cold hungry lonely sad tired worried".split()
HIDING_PLACES = [
    "behind a door",
    "between two stones",
    "in a basket",
    "in the tall grass",
    "under a bench",
    "under an old tree",
    "in an empty barrel",
]

OPENINGS = [
    "{hero} was {a_mood} {role} who lived near the {place}.",
    "Once there was {a_mood} {role} called {hero}, who lived by the {place}.",
    "Long ago, {hero} worked as {a} {role} not far from the {place}.",
    "Everyone at the {place} knew {hero}, the {mood} {role}.",
    "In a house near the {place} lived {hero}, {a_mood} {role}.",
]
# Three plots. A plot lists the possible sentences for each place in the story.
FOUND = [
    [
        "One {weather} {time}, {he} found {a_color} {object} {hidden}.",
        "One {weather} {time}, {a_color} {object} lay {hidden}, and {he} picked it up.",
        "On {a_weather} {time}, {he} saw something {color} {hidden}: it was {a_look} {object}.",
    ],
    [
        "{He} wondered who had lost the {object}.",
        "The {color} {object} did not belong to {him}, and {he} felt {feeling}.",
        "{He} had never seen such {a_look} {object} before.",
        "{He} put the {object} into {his} bag and forgot {his} {food}.",
    ],
    [
        "Then {friend}, {companion}, came to the {place} and looked {feeling}.",
        "At the {place} {he} met {friend}, {companion}, who seemed {feeling}.",
        "Soon {companion} named {friend} walked by and asked for {food}.",
    ],
    [
        '"That {object} is mine," said {friend}.',
        '"I lost my {object} last winter," said {friend}.',
        "{friend} saw the {color} {object} and began to laugh.",
        "{friend} had looked for the {object} for {number} days.",
    ],
    [
        "{hero} gave the {object} back, and they ate {food} together.",
        "{hero} smiled and gave {friend} the {object}, and from then on they were friends.",
        "So the {object} came home, and {hero} got {food} as a reward.",
        "They shared the {object} ever after, and {hero} was never {feeling} again.",
    ],
]
LOST = [
    [
        "{He} owned {a_color} {object} and loved it more than {food}.",
        "{His} greatest treasure was {a_look} {color} {object}.",
        "Every {time} {he} took out {his} {color} {object} and was happy.",
    ],
    [
        "One {weather} {time} the {object} was gone.",
        "But on {a_weather} {time} {he} lost the {object}.",
        "Then, one {weather} {time}, somebody stole the {object}.",
    ],
    [
        "{He} looked everywhere and became very {feeling}.",
        "{He} searched the {place} for {number} days and grew {feeling}.",
        "{He} could not eat any {food} and felt {feeling}.",
    ],
    [
        "{friend}, {companion}, helped {him} to look for it.",
        "At last {he} asked {friend}, {companion}, for help.",
        "Then {companion} named {friend} came with {food} and a good idea.",
    ],
    [
        "Together they found the {object} {hidden}.",
        "In the end {friend} found the {color} {object} {hidden}.",
        "The {object} was {hidden}, where {hero} had left it.",
    ],
    [
        "{hero} thanked {friend} with some {food}.",
        "From that {time} on, {hero} took better care of the {object}.",
        "{hero} laughed, and they went back to the {place}.",
    ],
]
MADE = [
    [
        "One {weather} {time}, {he} decided to make {a_color} {object}.",
        "{He} wanted to have {a_color} {object}, but {he} had no money.",
        "{friend}, {companion}, asked {him} for {a_color} {object}.",
    ],
    [
        "{He} worked on the {object} for {number} days and ate only {food}.",
        "It took {him} {number} days to make the {object}.",
        "Making the {object} was hard, and {he} was often {feeling}.",
    ],
    [
        "When the {object} was ready, {he} took it to the {place}.",
        "On {a_weather} {time} {he} showed the {object} to everyone at the {place}.",
        "At the {place} people came to look at the {color} {object}.",
    ],
    [
        '"What {a_look} {object}!" they said.',
        "Nobody there had ever seen such {a_look} {object}.",
        "Some were {feeling}, but most liked the {object}.",
    ],
    [
        "{hero} sold the {object} and bought {food} for all.",
        "That {time} {hero} was the most {mood} {role} in the world.",
        "Since then, people call {hero} the master of the {object}.",
        "{hero} kept the {object}, and it still hangs in {his} house.",
    ],
]
NUMBERS = "two three four five six seven ten".split()


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def draw(random: Random) -> tuple[str, str, str]:
    pronoun = random.choice(list(NAMES))
    hero = random.choice(NAMES[pronoun])
    friend = random.choice([name for name in ALL_NAMES if name != hero])
    role, thing, place, color = map(random.choice, (HEROES, OBJECTS, PLACES, COLORS))
    about = {"hero": hero, "role": role, "object": thing, "place": place}
    articles = {"a": with_article(role).split()[0], "an": with_article(thing).split()[0]}
    fixed = (
        about | articles | PRONOUNS[pronoun] | {"friend": friend, "color": color, "companion": random.choice(FRIENDS)}
    )

    def write(sentences: list[str]) -> str:
        """Chooses a sentence and fills its slots: those in `fixed` as in the whole story, the others drawn anew."""
        mood, weather, look = map(random.choice, (MOODS, WEATHERS, LOOKS))
        sentence, time, hidden, food, feeling, number = map(
            random.choice, (sentences, TIMES, HIDING_PLACES, FOOD, FEELINGS, NUMBERS)
        )
        words = fixed | {"mood": mood, "weather": weather, "look": look, "time": time, "hidden": hidden}
        words |= {"food": food, "feeling": feeling, "number": number}
        words |= {f"a_{name}": with_article(words[name]) for name in ("mood", "weather", "look", "color")}
        words |= {name.capitalize(): words[name].capitalize() for name in ("he", "his")}
        return sentence.format(**words)

    plot = random.choice([FOUND, LOST, MADE])
    prompt = random.choice(PROMPTS).format(**about, **articles)
    return prompt, " ".join(map(write, [OPENINGS, *plot])), " ".join(about.values())


# The checker wants whole sentences, and the people, the thing and the place of the question throughout.
SENTENCE = re.compile(r'"[^"]+[,!]" (?:said|they said)[^".]*\.|[^ ".!?][^".!?]*\.')
GENDER = {"he": "he", "him": "he", "his": "he", "she": "she", "her": "she"}
INTRODUCED = re.compile(r"\ban? (?:old friend|neighbor|cousin|good friend|stranger)\b")
WRONG_ARTICLE = re.compile(r"\b[Aa] [aeiou]|\b[Aa]n [^aeiou]")
NAME = re.compile(r"(?<=[a-z,] )[A-Z]\w*")  # a capital within a sentence


def words_of(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]+", text)


def is_whole(sentences: list[str], answer: str) -> bool:
    """Whether the answer is six or seven sentences of a few words each, with nothing between them."""
    return (
        6 <= len(sentences) <= 7
        and " ".join(sentences) == answer
        and all(re.match('"?[A-Z]', sentence) and len(words_of(sentence)) > 2 for sentence in sentences)
        and not WRONG_ARTICLE.search(answer)
    )


def people_agree(sentences: list[str], hero: str, role: str) -> bool:
    """
    Whether the hero comes first, with at most one friend, who is introduced where the name is first used, and all
    pronouns are the hero's.
    """
    text = " ".join(sentences)
    words = words_of(text)
    others = {word for word in words if word in ALL_NAMES} - {hero}
    gender = next(pronoun for pronoun, names in NAMES.items() if hero in names)
    introductions = [sentence for sentence in sentences if INTRODUCED.search(sentence)]
    first = next((sentence for sentence in sentences if others & set(words_of(sentence))), None)
    return (
        {hero, role} <= set(words_of(sentences[0]))
        and len(others) <= 1
        and introductions == ([first] if first else [])
        and set(NAME.findall(text)) <= set(ALL_NAMES)
        and {word for word in words if word in HEROES} == {role}
        and {GENDER[word.lower()] for word in words if word.lower() in GENDER} <= {gender}
    )


def things_agree(sentences: list[str], thing: str, place: str) -> bool:
    """Whether the story has the thing of the question in at most one color, its place from the start, and no other."""
    words = set(words_of(" ".join(sentences)))
    return (
        sum(thing in words_of(sentence) for sentence in sentences) >= 2
        and place in words_of(sentences[0])
        and words & set(OBJECTS) == {thing}
        and words & set(PLACES) == {place}
        and len(words & set(COLORS)) <= 1
    )


def check(prompt: str, answer: str) -> bool:
    asked = words_of(prompt)
    hero, role, thing, place = (
        next(word for word in asked if word in lexicon) for lexicon in (ALL_NAMES, HEROES, OBJECTS, PLACES)
    )
    sentences = SENTENCE.findall(answer)
    return (
        is_whole(sentences, answer) and people_agree(sentences, hero, role) and things_agree(sentences, thing, place)
    )

"""Short stories from a grammar: sentences vary freely, and people, thing and place stay the same."""

import re
from random import Random

from examples.demo.example import ALL_NAMES, COLORS, HEROES, NAMES, OBJECTS, PLACES, PRONOUNS, TEXTS, Example

SENTENCES = TEXTS["stories"]


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def draw(random: Random) -> tuple[str, str, str]:
    pronoun = random.choice(list(NAMES))
    hero = random.choice(NAMES[pronoun])
    friend = random.choice([name for name in ALL_NAMES if name != hero])
    role, thing, place, color = map(random.choice, (HEROES, OBJECTS, PLACES, COLORS))
    about = {"hero": hero, "role": role, "object": thing, "place": place}
    articles = {"a": with_article(role).split()[0], "an": with_article(thing).split()[0]}
    fixed = about | articles | PRONOUNS[pronoun] | {"friend": friend, "color": color}
    fixed["companion"] = random.choice(SENTENCES["friends"])

    def slots(*names: str) -> dict[str, str]:
        return {name: random.choice(SENTENCES["slots"][name]) for name in names}

    def write(sentences: list[str]) -> str:
        """Chooses a sentence and fills its slots: those in `fixed` as in the whole story, the others drawn anew."""
        words = fixed | slots("mood", "weather", "look")
        sentence = random.choice(sentences)
        words |= slots("time", "hidden", "food", "feeling", "number")
        words |= {f"a_{name}": with_article(words[name]) for name in ("mood", "weather", "look", "color")}
        words |= {name.capitalize(): words[name].capitalize() for name in ("he", "his")}
        return sentence.format(**words)

    plot = random.choice([SENTENCES["found"], SENTENCES["lost"], SENTENCES["made"]])
    prompt = random.choice(SENTENCES["prompts"]).format(**about, **articles)
    return prompt, " ".join(map(write, [SENTENCES["openings"], *plot])), " ".join(about.values())


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


def check(example: Example, answer: str) -> bool:
    hero, role, thing, place = example.key.split()
    sentences = SENTENCE.findall(answer)
    return (
        is_whole(sentences, answer) and people_agree(sentences, hero, role) and things_agree(sentences, thing, place)
    )

"""The checkers accept every right answer, whoever wrote it, and refuse wrong ones and any other text."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiers import property_settings

from examples.demo.tasks import KINDS, check, example
from examples.demo.words import HEROES, NAMES, OBJECTS, PLACES

ALL_NAMES = [name for names in NAMES.values() for name in names]
NUM_CHECKED = {kind: 300 for kind in KINDS} | {"functions": 20}  # of each split; a function takes a process


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_checker_accepts_every_answer(kind, split):
    for index in range(NUM_CHECKED[kind]):
        drawn = example(kind, split, index)
        assert check(kind, drawn.prompt, drawn.answer), drawn


# Made up by hand, not drawn.
RIGHT = [
    ("counting", "Keep subtracting 7 from 50 until you reach 36.", "50, 43, 36."),
    ("counting", "Which numbers are odd? Write those from 3 to 9.", "3, 5, 7, 9."),
    (
        "word_problems",
        "Mia has 3 boxes with 12 pens in each box. She gives 5 to Tom. How many pens does she have in the end?",
        "Start: 3 * 12 = 36\nLess: 36 - 5 = 31\nAnswer: 31",
    ),
    (
        "equations",
        "What is t if 3(t + 2) = 21?",
        "t + 2 = 21 / 3 = 7\nt = 7 - 2 = 5\nCheck: 3 * (5 + 2) = 3 * 7 = 21\nAnswer: t = 5",
    ),
    ("records", 'Filter the rows: "age" must be "x".\nname,age\nMia,x\nTom,y\nEva,x', "name,age\nMia,x\nEva,x"),
    ("records", '[{"name": "Mia", "age": 3}]\nRewrite this JSON as CSV.', "name,age\nMia,3"),
    ("records", 'Rename the key "age" to "years".\n[{"age": 3, "city": "Rome"}]', '[{"years": 3, "city": "Rome"}]'),
    (
        "functions",
        "Implement the function f(n). It checks whether n is even or greater than 7.",
        "def f(n):\n    return not (n % 2 and n <= 7)",
    ),
    (
        "functions",
        'Define f(text) in Python. It removes every "a" from text and then turns it around. Add a docstring.',
        'def f(text):\n    """Shorten."""\n    return "".join(c for c in text if c != "a")[::-1]',
    ),
]
STORY = (
    "Once there was a shy baker called Mia, who lived by the lake. One cold day, she found a red hat in a basket. "
    "She felt sad. Then Tom, a cousin, came to the lake. "
    '"That hat is mine," said Tom. Mia gave the hat back.'
)
ABOUT = "Write a short story about Mia, a baker, and a hat at the lake."


def test_what_is_right_by_hand_is_accepted():
    for kind, prompt, answer in RIGHT:
        assert check(kind, prompt, answer), prompt
    assert check("stories", ABOUT, STORY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hat back", "ring back"),
        ("by the lake", "by the house"),
        ("she found", "he found"),
        (", a cousin,", ""),
        ("a shy baker", "a shy sailor"),
        ("a red hat", "an red hat"),
        ("She felt sad. ", "she felt sad. "),
        ("She felt sad. ", ""),
        ("hat back.", "hat back"),
    ],
)
def test_a_story_that_does_not_agree_is_refused(old, new):
    assert STORY.count(old) == 1
    assert not check("stories", ABOUT, STORY.replace(old, new))


PROBLEM = "Leo has 8 nuts. Eva has 3 fewer than Leo. How many nuts do they have together?"
TABLE = "Convert this CSV to JSON.\nname,age\nMia,3"
FUNCTION = "Define f(n) in Python. It multiplies n by 2 and then adds 3."
WRONG = [
    ("counting", "Count by 4 from 12 to 24.", "12, 16, 20."),
    ("counting", "Count by 4 from 12 to 24.", "12, 16, 20, 24, 28."),
    ("word_problems", PROBLEM, "Friend: 8 + 3 = 11\nTogether: 8 + 11 = 19\nAnswer: 19"),
    ("word_problems", PROBLEM, "Friend: 8 - 3 = 6\nTogether: 8 + 6 = 13\nAnswer: 13"),
    ("word_problems", PROBLEM, "Friend: 8 + 3 = 11\nTogether: 11 + 2 = 13\nAnswer: 13"),
    ("equations", "Solve 2x + 3 = 11.", "2x = 11 - 3 = 8\nx = 8 / 2 = 4\nAnswer: x = 4"),
    ("equations", "Solve 2x + 3 = 11.", "2x = 8\nx = 4\nCheck: 2 * 4 + 3 = 8 + 4 = 12\nAnswer: x = 4"),
    ("equations", "Solve 2x + 3 = 11.", "2x = 10\nx = 5\nCheck: 2 * 5 + 3 = 10 + 3 = 13\nAnswer: x = 5"),
    ("records", TABLE, '[{"name": "Mia", "age": "3"}]'),
    ("records", TABLE, '[{"age": 3, "name": "Mia"}]'),
    ("records", TABLE, "name,age\nMia,3"),
    ("functions", FUNCTION, "def f(n):\n    return (n + 3) * 2"),
    ("functions", FUNCTION, "def g(n):\n    return n * 2 + 3"),
    ("functions", FUNCTION + " Add a docstring.", "def f(n):\n    return n * 2 + 3"),
]


@pytest.mark.parametrize(("kind", "prompt", "answer"), WRONG)
def test_what_is_wrong_by_hand_is_refused(kind, prompt, answer):
    assert not check(kind, prompt, answer)


@property_settings(60)
@given(st.sampled_from(["counting", "word_problems", "equations", "records"]), st.integers(0, 10**6), st.data())
def test_an_answer_with_one_character_changed_is_refused(kind, index, data):
    drawn = example(kind, "train", index)
    places = [match.start() for match in re.finditer(r"\w", drawn.answer)]
    if kind == "word_problems":  # the labels are words of the generator's choice
        places = [place for place in places if drawn.answer[place].isdigit()]
    place = data.draw(st.sampled_from(places))
    old = drawn.answer[place]
    new = data.draw(st.sampled_from("0123456789" if old.isdigit() else "abcxyzABCXYZ"))
    assume(new != old)
    assert not check(kind, drawn.prompt, drawn.answer[:place] + new + drawn.answer[place + 1 :])


SIGNS = st.text('0123456789 ,.=+-*/()[]{}":\nxACkert', max_size=60)


@property_settings(60)
@given(st.sampled_from([kind for kind in KINDS if kind != "functions"]), st.text(max_size=60) | SIGNS)
def test_any_other_text_is_refused(kind, text):
    drawn = example(kind, "train", 0)
    assert not check(kind, drawn.prompt, text)
    if kind != "stories":  # where another sentence may follow
        assert not check(kind, drawn.prompt, drawn.answer + "," + text)


@pytest.mark.parametrize("text", ["", "\x00", "\ud800", "[" * 10_000, "x = " + "1 + " * 10_000 + "1"])
@pytest.mark.parametrize("kind", ["equations", "records", "functions"])
def test_odd_texts_are_refused(kind, text):
    assert not check(kind, example(kind, "train", 0).prompt, text)
    if kind == "equations":
        assert not check(kind, "Solve x + 1 = 3.", f"{text}\nAnswer: x = 2")


@property_settings(60)
@given(st.integers(0, 10**6), st.data())
def test_a_story_with_one_noun_or_pronoun_changed_is_refused(index, data):
    drawn = example("stories", "train", index)
    pronouns = ["he", "she"]
    hero = next(word for word in re.findall(r"\w+", drawn.prompt) if word in ALL_NAMES)
    lexicons = [OBJECTS, PLACES, HEROES, pronouns, [hero, *(name for name in ALL_NAMES if name not in drawn.answer)]]
    swaps = [
        (match, lexicon)
        for match in re.finditer(r"\w+", drawn.answer)
        for lexicon in lexicons
        if match[0] in lexicon and (lexicon is not lexicons[-1] or match[0] == hero)
    ]
    match, lexicon = data.draw(st.sampled_from(swaps))
    new = data.draw(st.sampled_from([word for word in lexicon if word != match[0]]))
    assert not check("stories", drawn.prompt, drawn.answer[: match.start()] + new + drawn.answer[match.end() :])

"""The checkers accept every right answer, whoever wrote it, and refuse wrong ones and any other text."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiers import property_settings

from examples.demo.example import ALL_NAMES, HEROES, OBJECTS, PLACES, Example
from examples.demo.tasks import KINDS, check, example

NUM_CHECKED = {kind: 300 for kind in KINDS} | {"functions": 20}  # of each split; a function takes a process


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_checker_accepts_every_answer(kind, split):
    for index in range(NUM_CHECKED[kind]):
        drawn = example(kind, split, index)
        assert check(drawn, drawn.answer), drawn


COUNTING = Example("counting", "Count by 4 from 12 to 24.", "12, 16, 20, 24.", "")
PROBLEM = Example(
    "word_problems",
    "Leo has 8 nuts. Eva has 3 fewer than Leo. How many nuts do they have together?",
    "Friend: 8 - 3 = 5\nTogether: 8 + 5 = 13\nAnswer: 13",
    "",
)
EQUATION = Example(
    "equations",
    "Solve 2x + 3 = 11.",
    "2x = 11 - 3 = 8\nx = 8 / 2 = 4\nCheck: 2 * 4 + 3 = 8 + 3 = 11\nAnswer: x = 4",
    "",
)
TABLE = Example("records", "Convert this CSV to JSON.\nname,age\nMia,3", '[{"name": "Mia", "age": 3}]', "")
FUNCTION = Example(
    "functions", "Define f(n) in Python. It multiplies n by 2 and then adds 3.", "def f(n):\n    return n * 2 + 3", ""
)
SHORTEN = Example(
    "functions",
    'Define f(text) in Python. It removes every "a" from text and then turns it around. Add a docstring.',
    'def f(text):\n    """Shorten."""\n    return text.replace("a", "")[::-1]',
    "",
)
# Made up by hand, not drawn.
RIGHT = [
    (PROBLEM, "Eva: 8 - 3 = 5\nSum: 5 + 8 = 13\nAnswer: 13"),
    (EQUATION, "2x = 8\nx = 4\nCheck: 2 * 4 + 3 = 11\nAnswer: x = 4"),
    (TABLE, '[ {"name":"Mia",\n"age":3} ]'),
    (FUNCTION, "def f(n):\n    return 3 - -n - -n"),
    (SHORTEN, 'def f(text):\n    """Turn."""\n    return "".join(c for c in text if c != "a")[::-1]'),
]
WRONG = [
    (COUNTING, "12, 16, 20."),
    (PROBLEM, "Friend: 8 + 3 = 11\nTogether: 8 + 11 = 19\nAnswer: 19"),
    (PROBLEM, "Friend: 8 - 3 = 6\nTogether: 8 + 6 = 13\nAnswer: 13"),
    (PROBLEM, "Friend: 8 + 3 = 11\nTogether: 11 + 2 = 13\nAnswer: 13"),
    (PROBLEM, "Friend: 8 - 3 = 5\nMore: 8 + 8 = 16\nTogether: 8 + 5 = 13\nAnswer: 13"),
    (EQUATION, "2x = 11 - 3 = 8\nx = 8 / 2 = 4\nAnswer: x = 4"),
    (EQUATION, "2x = 8\nx = 4\nCheck: 2 * 4 + 3 = 8 + 4 = 12\nAnswer: x = 4"),
    (EQUATION, "2x = 10\nx = 5\nCheck: 2 * 5 + 3 = 10 + 3 = 13\nAnswer: x = 5"),
    (EQUATION, "2x = 8\n2x = 8\nCheck: 2 * 4 + 3 = 11\nAnswer: x = 4"),
    (EQUATION, "x = 4\nCheck: 2 * 4 + 3 = 11\nAnswer: x = 4"),
    (EQUATION, "x = 4\n2x = 8\nCheck: 2 * 4 + 3 = 11\nAnswer: x = 4"),
    (TABLE, '[{"name": "Mia", "age": "3"}]'),
    (TABLE, '[{"age": 3, "name": "Mia"}]'),
    (TABLE, "name,age\nMia,3"),
    (FUNCTION, "def f(n):\n    return (n + 3) * 2"),
    (FUNCTION, "def g(n):\n    return n * 2 + 3"),
    (SHORTEN, 'def f(text):\n    return text.replace("a", "")[::-1]'),
]


@pytest.mark.parametrize(
    ("question", "answer", "is_right"),
    [*((*pair, True) for pair in RIGHT), *((*pair, False) for pair in WRONG)],
)
def test_verdicts_on_answers_by_hand(question, answer, is_right):
    assert check(question, answer) == is_right


STORY = Example(
    "stories",
    "Write a short story about Mia, a baker, and a hat at the lake.",
    "Once there was a shy baker called Mia, who lived by the lake. One cold day, she found a red hat in a basket. "
    "She felt sad. Then Tom, a cousin, came to the lake. "
    '"That hat is mine," said Tom. Mia gave the hat back.',
    "Mia baker hat lake",
)


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
    assert check(STORY, STORY.answer) and STORY.answer.count(old) == 1
    assert not check(STORY, STORY.answer.replace(old, new))


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
    assert not check(drawn, drawn.answer[:place] + new + drawn.answer[place + 1 :])


@property_settings(60)
@given(st.integers(0, 10**6), st.data())
def test_a_story_with_one_noun_or_pronoun_changed_is_refused(index, data):
    drawn = example("stories", "train", index)
    hero = drawn.key.split()[0]
    names = [hero, *(name for name in ALL_NAMES if name not in drawn.answer)]
    swaps = [
        (match, lexicon)
        for match in re.finditer(r"\w+", drawn.answer)
        for lexicon in (OBJECTS, PLACES, HEROES, ["he", "she"], names)
        if match[0] in lexicon
    ]
    match, lexicon = data.draw(st.sampled_from(swaps))
    new = data.draw(st.sampled_from([word for word in lexicon if word != match[0]]))
    assert not check(drawn, drawn.answer[: match.start()] + new + drawn.answer[match.end() :])


@pytest.mark.parametrize("text", ["", "\x00", "\ud800", "[" * 10_000, "x = " + "1 + " * 10_000 + "1"])
@pytest.mark.parametrize("question", [EQUATION, TABLE, FUNCTION], ids=lambda question: question.kind)
def test_odd_texts_are_refused(question, text):
    assert not check(question, text)
    assert question is not EQUATION or not check(question, f"{text}\nAnswer: x = 4")

"""The checkers accept every right answer, whoever wrote it, and refuse wrong ones and any other text."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiers import property_settings

from examples.demo.tasks import KINDS, check, example
from examples.demo.words import HEROES, NAMES, OBJECTS, PLACES

ALL_NAMES = [name for names in NAMES.values() for name in names]
NUM_CHECKED = {kind: 1000 for kind in KINDS} | {"functions": 60}  # of each split; a function takes a process


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_checker_accepts_every_answer(kind, split):
    for index in range(NUM_CHECKED[kind]):
        drawn = example(kind, split, index)
        assert check(kind, drawn.prompt, drawn.answer), drawn


# Made up by hand, not drawn.
RIGHT = [
    ("counting", "Count by 4 from 12 to 24.", "12, 16, 20, 24."),
    ("counting", "Keep subtracting 7 from 50 until you reach 36.", "50, 43, 36."),
    ("counting", "Keep adding 7 to 36 until you reach 50.", "36, 43, 50."),
    ("counting", "Start at 36 and add 7 until you are at 50.", "36, 43, 50."),
    ("counting", "Write every number, 7 apart, backwards from 50 to 36.", "50, 43, 36."),
    ("counting", "List the multiples of 7 from 14 to 28.", "14, 21, 28."),
    ("counting", "Which numbers are odd? Write those from 3 to 9.", "3, 5, 7, 9."),
    (
        "word_problems",
        "Mia has 3 boxes with 12 pens in each box. She gives 5 to Tom. How many pens does she have in the end?",
        "Start: 3 * 12 = 36\nLess: 36 - 5 = 31\nAnswer: 31",
    ),
    (
        "word_problems",
        "Leo has 8 nuts. Eva has 3 fewer than Leo. How many nuts do they have together?",
        "Friend: 8 - 3 = 5\nTogether: 8 + 5 = 13\nAnswer: 13",
    ),
    (
        "equations",
        "What is t if 3(t + 2) = 21?",
        "t + 2 = 21 / 3 = 7\nt = 7 - 2 = 5\nCheck: 3 * (5 + 2) = 3 * 7 = 21\nAnswer: t = 5",
    ),
    (
        "equations",
        "If x / 4 + 1 = 3, what is the value of x?",
        "x / 4 = 3 - 1 = 2\nx = 2 * 4 = 8\nCheck: 8 / 4 + 1 = 2 + 1 = 3\nAnswer: x = 8",
    ),
    ("records", 'Drop the column "age".\nname,age\nMia,3\nTom,4', "name\nMia\nTom"),
    ("records", 'Filter the rows: "age" must be "x".\nname,age\nMia,x\nTom,y\nEva,x', "name,age\nMia,x\nEva,x"),
    ("records", '[{"name": "Mia", "age": 3}]\nRewrite this JSON as CSV.', "name,age\nMia,3"),
    ("records", "Convert this CSV to JSON.\nname,age\nMia,3", '[{"name": "Mia", "age": 3}]'),
    ("records", 'Which rows have "a" equal to "x"? Write only those.\nname,a\nMia,y\nTom,x', "name,a\nTom,x"),
    ("records", 'Rename the key "age" to "years".\n[{"age": 3, "city": "Rome"}]', '[{"years": 3, "city": "Rome"}]'),
    ("records", 'Write "city" in capital letters.\ncity\nRome', "city\nROME"),
    (
        "functions",
        "Define f(n) in Python. It adds 3 to n and then multiplies the sum by 2.",
        "f = lambda n: 2 * n + 6",
    ),
    (
        "functions",
        "Implement the function f(n). It checks whether n is even or greater than 7.",
        "def f(n):\n    return not (n % 2 and n <= 7)",
    ),
    (
        "functions",
        "Define f(numbers) in Python. It returns the sum of x plus 2 for every x in numbers that is at most 9.",
        "def f(numbers):\n    return sum(x + 2 for x in numbers if x < 10)",
    ),
    (
        "functions",
        'Define f(text) in Python. It removes every "a" from text and then turns it around. Add a docstring.',
        'def f(text):\n    """Shorten."""\n    return "".join(c for c in text if c != "a")[::-1]',
    ),
    (
        "functions",
        'Define f(text) in Python. It counts the words of text that end with "x" and have more than 2 letters.',
        "def f(text):\n    return len([w for w in text.split() if w[-1] == 'x' and len(w) >= 3])",
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
        ("hat is mine", "hat of the tailor is mine"),
        ("came to the lake", "came to the hill"),
        ("by the lake", "by the house"),
        ("she found", "he found"),
        ("a red hat in", "a red hat, blue inside, in"),
        ("Mia gave", "Zoe gave"),
        (", a cousin,", ""),
        ("Then Tom, a cousin,", "Then a cousin"),
        ("Then Tom", "Then Mia"),
        ("called Mia", "called Eva"),
        ("a shy baker", "a shy sailor"),
        ("a red hat", "an red hat"),
        ("She felt sad. ", "she felt sad. "),
        ("She felt sad. ", ""),
        ("She felt sad. ", "She felt sad.. "),
        ("hat back.", "hat back"),
        ("hat back.", "hat back. A."),
    ],
)
def test_a_story_that_does_not_agree_is_refused(old, new):
    assert STORY.count(old) == 1
    assert not check("stories", ABOUT, STORY.replace(old, new))


WRONG = [
    ("counting", "Count by 4 from 12 to 24.", "12, 16, 20."),
    ("counting", "Count by 4 from 12 to 24.", "12, 16, 20, 24"),
    ("counting", "Count by 4 from 12 to 24.", "12, 16, 20, 24, 28."),
    ("counting", "Count by 4 from 12 to 24.", "twelve, sixteen, twenty, twenty-four."),
    (
        "word_problems",
        "Leo has 8 nuts. Eva has 3 fewer than Leo. How many nuts do they have together?",
        "Friend: 8 + 3 = 11\nTogether: 8 + 11 = 19\nAnswer: 19",
    ),
    (
        "word_problems",
        "Leo has 8 nuts. Eva has 3 fewer than Leo. How many nuts do they have together?",
        "Friend: 8 + 5 = 13\nAnswer: 13",
    ),
    (
        "word_problems",
        "Leo has 8 nuts. Eva has 8 fewer than Leo. How many nuts do they have together?",
        "Friend: 8 - 8 = 1\nTogether: 8 + 1 = 9\nAnswer: 8",
    ),
    (
        "word_problems",
        "Leo has 8 nuts. Eva has 3 fewer than Leo. How many nuts do they have together?",
        "Friend: 8 - 3 = 6\nTogether: 8 + 6 = 13\nAnswer: 13",
    ),
    (
        "word_problems",
        "Leo has 8 nuts. Eva has 3 fewer than Leo. How many nuts do they have together?",
        "Friend: 8 + 3 = 11\nTogether: 11 + 2 = 13\nAnswer: 13",
    ),
    (
        "word_problems",
        "Leo has 8 nuts. A fox steals 1 and Tom takes 2 of them. How many nuts does he have now?",
        "Less: 8 * 1 = 8\nLeft: 8 - 2 = 6\nAnswer: 6",
    ),
    ("word_problems", "Leo has 8 nuts. A fox stole 3. How many nuts are left?", "Left: 8 - 3 = 5\nAnswer: 5"),
    ("word_problems", "Leo has 8 nuts. He loses 3 of them. How many are left?", "Answer: 5"),
    ("equations", "Solve 2x + 3 = 11.", "x = 4"),
    ("equations", "Solve 2x + 3 = 11.", "2x = 11 - 3 = 8\nx = 8 / 2 = 4\nAnswer: x = 4"),
    ("equations", "Solve 2x + 3 = 11.", "2x = 11 - 3 = 8\nx = 8 / 2 = 4\nCheck: 2 * 4 = 8\nAnswer: x = 4"),
    ("equations", "Solve 2x + 3 = 11.", "x = 8 / 2 = 4\nCheck: 2 * 4 + 3 = 8 + 3 = 11\nAnswer: x = 4"),
    ("equations", "Solve 2x + 3 = 11.", "2 = 2\nx = 4\nCheck: 2 * 4 + 3 = 8 + 3 = 11\nAnswer: x = 4"),
    ("equations", "Solve 2x + 3 = 11.", "2x = 8\nx = 4\nCheck: 2 * 4 + 3 = 8 + 4 = 12\nAnswer: x = 4"),
    ("equations", "Solve 2x + 3 = 11.", "2y = 8\ny = 4\nCheck: 2 * 4 + 3 = 8 + 3 = 11\nAnswer: y = 4"),
    ("equations", "Solve 2x + 3 = 11.", "2x = 10\nx = 5\nCheck: 2 * 5 + 3 = 10 + 3 = 13\nAnswer: x = 5"),
    ("records", "Convert this CSV to JSON.\nname,age\nMia,3", '[{"name": "Mia", "age": "3"}]'),
    ("records", "Convert this CSV to JSON.\nname,age\nMia,3", '[{"age": 3, "name": "Mia"}]'),
    ("records", "Convert this CSV to JSON.\nname,age\nMia,3", "name,age\nMia,3"),
    ("records", "Convert this CSV to JSON.\nname,age\nMia,3", '[{"name": "Mia", "age": 3}'),
    ("records", 'Drop the column "age".\nname,age\nMia,3', "name\nMia,3"),
    ("records", 'Drop the column "age".\nname,age\nMia,3', ""),
    ("functions", "Define f(n) in Python. It multiplies n by 2 and then adds 3.", "def f(n):\n    return (n + 3) * 2"),
    ("functions", "Define f(n) in Python. It multiplies n by 2 and then adds 3.", "def g(n):\n    return n * 2 + 3"),
    ("functions", "Define f(n) in Python. It multiplies n by 2 and then adds 3.", "def f(n):\n    return n * 2 +"),
    (
        "functions",
        "Define f(n) in Python. It multiplies n by 2 and then adds 3. Add a docstring.",
        "def f(n):\n    return n * 2 + 3",
    ),
    (
        "functions",
        "Implement the function f(n). It checks whether n is at least 9 and odd.",
        "def f(n):\n    return n > 9 and n % 2 == 1",
    ),
    (
        "functions",
        "Implement the function f(n). It checks whether n is at least 9 and odd.",
        "def f(n):\n    return int(n >= 9 and n % 2 == 1)",
    ),
    (
        "functions",
        'Define f(text) in Python. It lists the words of text that start with "k" and have fewer than 5 letters.',
        'def f(text):\n    return [w for w in text.split() if w.startswith("k") and len(w) <= 5]',
    ),
    (
        "functions",
        'Define f(text) in Python. It puts "k" in front of text and then drops the first 4 characters.',
        'def f(text):\n    return text[4:]',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "prompt", "answer"), WRONG)
def test_what_is_wrong_by_hand_is_refused(kind, prompt, answer):
    assert not check(kind, prompt, answer)


@property_settings(100)
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


@property_settings(100)
@given(st.sampled_from(["counting", "word_problems", "equations", "records"]), st.integers(0, 10**6), st.data())
def test_an_answer_with_a_part_left_out_or_said_twice_is_refused(kind, index, data):
    drawn = example(kind, "train", index)
    parts = re.findall(r"[^\n,]*[\n,]?", drawn.answer)[:-1]
    place = data.draw(st.integers(0, len(parts) - 1))
    copies = data.draw(st.sampled_from([0, 2]))
    # There may be more than one way to an unknown.
    assume(kind != "equations" or copies or parts[place].startswith(("Check", "Answer")))
    changed = "".join([*parts[:place], *[parts[place]] * copies, *parts[place + 1 :]])
    assert not check(kind, drawn.prompt, changed)


SIGNS = st.text('0123456789 ,.=+-*/()[]{}":\nxACkert', max_size=60)


@property_settings(100)
@given(st.sampled_from([kind for kind in KINDS if kind != "functions"]), st.text(max_size=60) | SIGNS)
def test_any_other_text_is_refused(kind, text):
    drawn = example(kind, "train", 0)
    assert not check(kind, drawn.prompt, text)
    if kind != "stories":  # where another sentence may follow
        assert not check(kind, drawn.prompt, drawn.answer + "," + text)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "text", ["", "x", "\x00", "\ud800", "[" * 10_000, "(" * 10_000, "x = " + "1 + " * 10_000 + "1"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_texts_are_refused(kind, text):
    assert not check(kind, example(kind, "train", 0).prompt, text)
    if kind == "equations":
        assert not check(kind, "Solve x + 1 = 3.", f"{text}\nAnswer: x = 2")


@property_settings(100)
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

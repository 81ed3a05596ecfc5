"""The prompts of `wedlm adapt`: repeatable, different, the kinds in turns, held-out tasks apart, code that parses."""

import ast
import re
from collections import Counter
from copy import deepcopy
from inspect import signature
from random import Random

import pytest
from helpers import run_python

from wedlm.adapters.prompts import KINDS, MOST_OF_A_KIND, is_held_out, make_prompts
from wedlm.adapters.prompts_code_templates import CODES
from wedlm.adapters.prompts_functions import FUNCTIONS, value_of
from wedlm.adapters.prompts_phrases import clause, direct, third_person

MOST = {name: len(KINDS) * number for name, number in MOST_OF_A_KIND.items()}


@pytest.fixture(scope="module")
def prompts():
    return make_prompts(MOST["train"])


@pytest.fixture(scope="module")
def held_out():
    return make_prompts(MOST["held out"], held_out=True)


def code_of(text):
    """The code of a prompt: in a fence, or the whole, or behind the request and a blank line."""
    fenced = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)
    if fenced:
        return fenced[1]
    return text if text.startswith("def ") else text.partition("\n\n")[2]


# --- Numbers ---


@pytest.mark.parametrize("seed", [1, 2])
def test_every_kind_gives_as_many_prompts_as_promised(seed, prompts, held_out):
    for drawn in (prompts, held_out, make_prompts(MOST["train"], seed), make_prompts(MOST["held out"], seed, True)):
        numbers = Counter(prompt.kind for prompt in drawn)
        assert set(numbers) == set(KINDS) and len(set(numbers.values())) == 1
    assert MOST["train"] >= 6000


@pytest.mark.parametrize("number", [-1, 12_001])
def test_more_prompts_than_there_are_is_refused(number):
    with pytest.raises(ValueError, match=f"num_prompts={number} must be between 0 and 12000"):
        make_prompts(number)


def test_the_kinds_come_in_turns(prompts, held_out):
    for drawn in (prompts, held_out):
        assert [prompt.kind for prompt in drawn] == [KINDS[place % len(KINDS)] for place in range(len(drawn))]


# --- Which prompts ---


def test_the_same_seed_gives_the_same_prompts_in_every_process(prompts, tmp_path):
    assert make_prompts(50) == prompts[:50]
    assert make_prompts(50, seed=1) != prompts[:50]
    # Another process has other hashes of strings.
    printed = run_python(
        "from wedlm.adapters.prompts import make_prompts; print([tuple(p) for p in make_prompts(50)])", tmp_path
    )
    assert ast.literal_eval(printed) == [tuple(prompt) for prompt in prompts[:50]]


def test_no_text_comes_twice(prompts, held_out):
    for drawn in (prompts, held_out):
        assert len({prompt.text for prompt in drawn}) == len(drawn)


def test_no_held_out_text_is_trained_on(prompts, held_out):
    trained = {prompt.text for seed in range(1, 4) for prompt in make_prompts(6000, seed)} | {p.text for p in prompts}
    assert not trained & {prompt.text for seed in (1, 2) for prompt in make_prompts(500, seed, held_out=True)}
    assert not trained & {prompt.text for prompt in held_out}


def test_a_task_is_held_out_in_all_its_wordings(prompts, held_out):
    names = [
        {re.search(r"def (\w+)", prompt.text)[1] for prompt in drawn if prompt.kind == "code_completed"}
        for drawn in (prompts, held_out)
    ]
    assert all(names) and not names[0] & names[1]
    assert 0.1 < sum(is_held_out("maths", str(number)) for number in range(1000)) / 1000 < 0.15


def test_no_torch_is_imported(tmp_path):
    run_python(
        "import sys, wedlm.adapters.prompts; assert not {'torch', 'transformers', 'peft'} & set(sys.modules)", tmp_path
    )


# --- The texts ---


def test_texts_are_whole_and_of_a_useful_length(prompts, held_out):
    lengths = [len(prompt.text.split()) for prompt in prompts + held_out]
    assert min(lengths) >= 2 and max(lengths) <= 200
    assert sum(length < 80 for length in lengths) > 0.9 * len(lengths)
    for prompt in prompts + held_out:
        assert prompt.text == prompt.text.strip(), prompt
        assert not re.search(r"\$\w|\{[a-z_]+\}", prompt.text), prompt
        request = "" if "code" in prompt.kind else prompt.text
        assert not re.search(r"[.?!] ?[.?]| {2}|;$", request), prompt
        assert not re.search(r"\b[Aa] [aeio]\w|\b[Aa]n [^aeiouhAEIOFHLMNRSX]", request), prompt


def test_code_parses(prompts, held_out):
    with_code = [p for p in prompts + held_out if p.kind in ("code_changed", "code_explained", "code_completed")]
    assert len(with_code) == 3 * sum(MOST_OF_A_KIND.values())
    for prompt in with_code:
        assert ast.parse(code_of(prompt.text)).body, prompt


def test_every_mistake_changes_its_code():
    assert [template.code for template in CODES if template.mistake[0] not in template.code] == []


def test_examples_in_docstrings_are_true(prompts):
    """The examples in the style of doctest, checked by the functions themselves."""
    solutions = {function.__name__: function for function in FUNCTIONS}
    examples = {
        example
        for p in prompts
        for example in re.findall(r">>> (\w+\(.*\))\n +(.*)", p.text)
        if p.kind == "code_completed"
    }
    assert len({call.partition("(")[0] for call, _ in examples}) > 60
    for call, result in examples:
        assert eval(call, dict(solutions)) == ast.literal_eval(result), call


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_functions_do_not_change_their_arguments(function):
    random = Random(0)
    for _ in range(20):
        values = [value_of(random, a.name, a.annotation) for a in signature(function).parameters.values()]
        before = deepcopy(values)
        function(*values)
        assert values == before


def test_questions_become_clauses():
    assert direct("why", "is the sky | blue") == "Why is the sky blue?"
    assert clause("why", "is the sky | blue") == "why the sky is blue"
    assert clause("how", "does Wi-Fi | carry data") == "how Wi-Fi carries data"
    assert clause("how", "do bats | find their way") == "how bats find their way"
    assert [third_person(verb) for verb in ("have", "wash it", "play", "turn sour")] == [
        "has",
        "washes it",
        "plays",
        "turns sour",
    ]

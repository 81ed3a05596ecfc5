"""The prompts of `wedlm adapt`: repeatable, different, the kinds alternating, held-out tasks apart."""

import re
from collections import Counter

import pytest
from helpers import REPOSITORY

from wedlm.drafts.prompts import HEAD, KINDS, all_prompts, read_prompts


def test_the_file_has_the_kinds_and_numbers_of_its_head_and_the_docs():
    assert HEAD == {"licence": "Apache-2.0", "seed": 0, "kinds": list(KINDS), "train": 12_000, "held_out": 1_200}
    for split, prompts in all_prompts().items():
        assert [prompt.kind for prompt in prompts] == list(KINDS) * (HEAD[split] // len(KINDS))
        assert len({prompt.text for prompt in prompts}) == HEAD[split]
        assert all(prompt.text == prompt.text.strip() != "" for prompt in prompts)
    page = (REPOSITORY / "docs" / "reference" / "adapt.md").read_text(encoding="utf-8")
    assert f"{HEAD['train']:,} prompts of {len(KINDS)} kinds" in page


def test_no_held_out_task_is_trained_on():
    train, held_out = ({prompt.text for prompt in prompts} for prompts in all_prompts().values())
    assert not train & held_out
    functions = [  # in other words neither
        {re.search(r"def (\w+)", prompt.text)[1] for prompt in prompts if prompt.kind == "code_completed"}
        for prompts in all_prompts().values()
    ]
    assert all(functions) and not functions[0] & functions[1]


@pytest.mark.parametrize("held_out", [False, True])
def test_a_seed_is_an_order_of_the_same_prompts(held_out):
    of_file = all_prompts()["held_out" if held_out else "train"]
    assert read_prompts(50, held_out=held_out) == of_file[:50]
    other = read_prompts(len(of_file), 1, held_out)
    assert Counter(other) == Counter(of_file) and other != of_file
    assert [prompt.kind for prompt in other] == [prompt.kind for prompt in of_file]
    assert read_prompts(50, 1, held_out) == other[:50] != read_prompts(50, 2, held_out)


@pytest.mark.parametrize("number", [-1, 12_001])
def test_more_prompts_than_there_are_is_refused(number):
    with pytest.raises(ValueError, match=f"num_prompts={number} must be between 0 and 12000"):
        read_prompts(number)

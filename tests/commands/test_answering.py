"""Prompts and checkpoints that cannot be answered."""

import sys

import pytest
from command_line import CONTEXT, MASK_TEXT, run

from wedlm.commands.answering import read_prompt


def test_standard_input_that_is_closed_or_not_text(checkpoint, monkeypatch):
    result = run("generate", checkpoint, "-", input=b"\xff")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Standard input is not UTF-8 (") and result.stderr.endswith(
        "such as with iconv.\n"
    )
    result = run("chat", checkpoint, input=b"\xff")
    assert result.exit_code == 2 and result.stderr.startswith("Standard input is not UTF-8 (")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="The prompt is empty"):
        read_prompt("-")


def test_prompts_that_are_empty_or_too_long(checkpoint):
    for prompt, sentence in (
        ("", "The prompt is empty; give it some text.\n"),
        (
            "the cat " * CONTEXT,
            f"tokens, and the model reads {CONTEXT} with the answer; shorten it (in a chat, /reset "
            "forgets the conversation).\n",
        ),
        ("the cat \udcff", "The prompt 'the cat \\udcff' is not UTF-8; convert it, or read it from standard input.\n"),
        (
            MASK_TEXT,
            f"The prompt holds {MASK_TEXT}, the MASK token, which stands for an open slot; take it out.\n",
        ),
    ):
        result = run("generate", checkpoint, prompt)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.endswith(sentence) and result.stderr.count("\n") == 1

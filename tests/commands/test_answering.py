"""The ids of prompts, and prompts and checkpoints that cannot be answered."""

import sys
from types import SimpleNamespace

import pytest
from command_line import CONTEXT, MASK_TEXT, PROMPT, run
from stock_tokenizers import FLAVOURS
from transformers import AutoTokenizer

from wedlm.commands.answering import encode
from wedlm.commands.checks import read_prompt


def test_standard_input_that_is_closed_or_not_text(checkpoint, monkeypatch):
    result = run("generate", "-", "--model", checkpoint, input=b"\xff")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Standard input is not UTF-8 (") and result.stderr.endswith(
        "such as with iconv.\n"
    )
    result = run("chat", "--model", checkpoint, input=b"\xff")
    assert result.exit_code == 2 and result.stderr.startswith("Standard input is not UTF-8 (")
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="The prompt is empty"):
        read_prompt("-")


@pytest.mark.few(4)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_prompts_have_the_ids_that_the_tokenizer_gives(tmp_path, flavour):
    """A first token is there once, whether the template or the tokenizer writes it."""
    FLAVOURS[flavour](tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=CONTEXT, mask_token_id=-1))
    chat = [{"role": "user", "content": PROMPT}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert encode(model, tokenizer, PROMPT) == encode(model, tokenizer, chat) == asked
    assert encode(model, tokenizer, PROMPT, raw=True) == tokenizer(PROMPT)["input_ids"]
    assert asked[:2].count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_prompts_that_are_empty_or_too_long(checkpoint, command):
    for prompt, sentence in (
        ("", "The prompt is empty; give it some text.\n"),
        (" \n", "The prompt is empty; give it some text.\n"),
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
        result = run(command, prompt, "--model", checkpoint)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.endswith(sentence) and result.stderr.count("\n") == 1

"""The ids of prompts, with tokenizers of many kinds."""

from types import SimpleNamespace

import pytest
from command_line import CONTEXT, PROMPT
from stock_tokenizers import FLAVOURS
from transformers import AutoTokenizer, PreTrainedConfig

from wedlm.checkpoints.prompt_ids import encode


@pytest.mark.few(4)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_prompts_have_the_ids_that_the_tokenizer_gives(tmp_path, flavour):
    """A first token is there once, whether the template or the tokenizer writes it."""
    FLAVOURS[flavour](tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = SimpleNamespace(config=PreTrainedConfig(max_position_embeddings=CONTEXT, mask_token_id=-1))
    chat = [{"role": "user", "content": PROMPT}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert encode(model, tokenizer, PROMPT) == encode(model, tokenizer, chat) == asked
    assert encode(model, tokenizer, PROMPT, raw=True) == tokenizer(PROMPT)["input_ids"]
    assert asked[:2].count(tokenizer.bos_token_id) == 1

"""Text that a grammar forces into shape, by xgrammar's own logits processor."""

import json
import string

import pytest
import torch
import xgrammar
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from xgrammar.contrib.hf import LogitsProcessor

from wedlm import WeDLMConfig, WeDLMForCausalLM

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z ]{0,8}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    special = ["<pad>", "<eos>", "<unk>", "<mask>"]
    words = [*special, *string.printable[:95], '{"', '": ', '", "', "true", "false", "age"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "unk", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **names)


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(0)
    config = WeDLMConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, initializer_range=0.5, bos_token_id=None, mask_token_id=3,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return WeDLMForCausalLM(config).eval()


@pytest.fixture(scope="module")
def grammar(tokenizer):
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=128, stop_token_ids=[tokenizer.eos_token_id])
    return xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(SCHEMA, any_whitespace=False)


@pytest.mark.parametrize("more", [{}, {"do_sample": True, "temperature": 1.5, "decoding": "blockwise"}], ids=str)
def test_text_satisfies_the_schema(tokenizer, model, grammar, more):
    torch.manual_seed(0)
    inputs = tokenizer(["ab", "q", "hello"], return_tensors="pt", padding=True, return_token_type_ids=False)
    output = model.generate(
        **inputs, max_new_tokens=80, entropy_threshold=3.0, logits_processor=[LogitsProcessor(grammar)],
        window_size=16, return_dict_in_generate=True, **more,
    )  # fmt: skip
    for row in output.sequences[:, inputs["input_ids"].shape[1] :].tolist():
        value = json.loads(tokenizer.decode(row[: row.index(tokenizer.eos_token_id)]))
        assert list(value) == ["name", "age", "ok"]
        assert isinstance(value["name"], str) and len(value["name"]) <= 8
        assert type(value["age"]) is int and 0 <= value["age"] <= 99
        assert type(value["ok"]) is bool
    assert output.tokens_per_forward.min() > 1.3

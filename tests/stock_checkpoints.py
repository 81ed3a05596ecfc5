"""Tiny checkpoints of the stock architectures, as transformers writes them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from wedlm import convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError

TOKENS = 259  # of the tokenizer below
END, SAY = 256, 257  # <|endoftext|>, <|im_start|>
INDEX = "model.safetensors.index.json"
CLASSES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}


def save_tokenizer(folder):
    alphabet = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(vocab=alphabet, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)


def save_stock(folder, model_type="qwen3", rows=TOKENS, tied=False, dtype=torch.float32, tokenizer=True, **fields):
    """A tiny checkpoint of a stock architecture in three shards."""
    config_class, model_class = CLASSES[model_type]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    own = {"qwen3": {"head_dim": 12}, "mistral": {"sliding_window": None}}.get(model_type, {})
    ends = {"eos_token_id": [END, SAY]}
    shape = {"num_hidden_layers": 2, "vocab_size": rows, "tie_word_embeddings": tied}
    config = config_class(**{**sizes, **shape, **ends, **own, **fields}, dtype=dtype)
    torch.manual_seed(0)
    model = model_class(config).to(dtype).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    weights = {name: tensor for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    names, weight_map = list(weights), {}
    for i in range(3):
        file = f"model-{i + 1:05}-of-00003.safetensors"
        part = {name: weights[name] for name in names[i * len(names) // 3 : (i + 1) * len(names) // 3]}
        save_file(part, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = {
        "total_parameters": sum(tensor.numel() for tensor in weights.values()),
        "total_size": sum(tensor.nbytes for tensor in weights.values()),
    }
    (folder / INDEX).write_text(json.dumps({"metadata": total, "weight_map": weight_map}, indent=2) + "\n")
    if tokenizer:
        save_tokenizer(folder)
    return model


# The name of transformers 5, and that of transformers 4, which the way back writes.
OLD_NAME = (b'"extra_special_tokens"', b'"additional_special_tokens"')


def edit(path, removed=(), **fields):
    content = {name: value for name, value in json.loads(path.read_text()).items() if name not in removed}
    path.write_text(json.dumps(content | fields))


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def weights_of(folder):
    return {name: tensor for path in Path(folder).glob("*.safetensors") for name, tensor in load_file(path).items()}


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def write_header(path, change):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def assert_refused(source, tmp_path, change, message):
    """Conversion of the changed source raises one sentence, and writes nothing."""
    change(source)
    before = files_of(tmp_path)
    with pytest.raises(CheckpointError, match=message) as error:
        convert_to_wedlm(source, tmp_path / "wedlm")
    assert "\n" not in str(error.value) and str(error.value).endswith(".")
    assert files_of(tmp_path) == before and not (tmp_path / "wedlm").exists()

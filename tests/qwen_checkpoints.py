"""Tiny Qwen checkpoints, as stock transformers writes them."""

import json

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

TOKENS = 259  # of the tokenizer below


END, SAY = 256, 257  # <|endoftext|>, <|im_start|>


INDEX = "model.safetensors.index.json"


def save_tokenizer(folder):
    alphabet = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(vocab=alphabet, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)


def save_qwen(folder, model_type="qwen3", rows=TOKENS, tied=False, dtype=torch.float32, tokenizer=True, **fields):
    """A tiny Qwen checkpoint in three shards."""
    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[model_type]
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    width = {"head_dim": 12} if model_type == "qwen3" else {}
    config = config_class(
        **{**sizes, **width, "num_hidden_layers": 2, "vocab_size": rows, "tie_word_embeddings": tied, **fields},
        eos_token_id=[END, SAY],
        dtype=dtype,
    )
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

"""`wedlm info`: what a checkpoint is and can do, from its config and the headers of its weight files."""

import os
from collections import Counter
from typing import NamedTuple

import torch
from transformers import GenerationConfig

from wedlm.checkpoint import CheckpointError, checkpoint_folder, read_config, remedy, require_wedlm
from wedlm.generation.support import DECODINGS, DEFAULTS
from wedlm.modeling_wedlm.configuration_wedlm import MODEL_TYPE, WeDLMConfig
from wedlm.modeling_wedlm.conversion_error import ConversionError
from wedlm.modeling_wedlm.convert import (
    STOCK_CONFIGS,
    limits_of_parallel_decoding,
    read_generation_fields,
    wedlm_model,
)
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM
from wedlm.modeling_wedlm.shards import DTYPES, Shard, read_shards, shard_names
from wedlm.modeling_wedlm.tokenizer_files import TokenizerFiles

DTYPES_IN_MEMORY = (torch.float32, torch.bfloat16)
CACHED_TOKENS = 1000
SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


class Facts(NamedTuple):
    name: str
    model_type: str
    config: WeDLMConfig
    parameters: int
    shards: list[Shard]  # none, if the weights are not here
    mask_token: str | None  # as the tokenizer writes it
    has_tokenizer: bool
    generation: dict  # what generate() does unless told otherwise
    decodings: list[str]
    notes: list[str]

    def weight_bytes(self, dtype: torch.dtype) -> int:
        return self.parameters * dtype.itemsize

    def cache_bytes(self, dtype: torch.dtype, tokens: int) -> int:
        config = self.config
        width = 2 * config.num_key_value_heads * config.head_dim  # keys and values
        return config.num_hidden_layers * width * tokens * dtype.itemsize

    def bytes_on_disk(self) -> Counter[str]:
        """By dtype."""
        total: Counter[str] = Counter()
        for shard in self.shards:
            for tensor in shard.tensors.values():
                start, stop = tensor["data_offsets"]
                total[dtype_name(DTYPES[tensor["dtype"]])] += stop - start
        return total


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read_facts(name: str | os.PathLike) -> Facts:
    folder = checkpoint_folder(name, with_weights=False)
    fields = read_config(name, folder)
    model_type = fields.get("model_type")
    if model_type not in STOCK_CONFIGS:
        require_wedlm(name, fields)
    try:
        config, model = wedlm_model(fields, name)
        generation = read_generation_fields(folder)
        shards = read_shards(folder) if any((folder / file).exists() for file in shard_names(folder)) else []
        tokenizer = TokenizerFiles.read(folder)
    except ConversionError as error:
        raise CheckpointError(str(error)) from error
    is_wedlm = model_type == MODEL_TYPE
    tokens = {i: token for token, i in tokenizer.token_ids().items()}
    return Facts(
        str(name),
        model_type,
        config,
        model.num_parameters(),
        shards,
        tokens.get(config.mask_token_id),
        tokenizer.has_tokens(),
        (DEFAULTS if is_wedlm else {}) | generation,
        offered_decodings(model, generation) if is_wedlm else [],
        limits_of_parallel_decoding(model, generation) if is_wedlm else [],
    )


def offered_decodings(model: WeDLMForCausalLM, generation: dict) -> list[str]:
    offered = []
    for decoding in DECODINGS:
        try:
            model.generation_config = GenerationConfig.from_dict(generation)
            model._prepare_generation_config(None, decoding=decoding)
            if decoding != "autoregressive":
                model.config.require_mask_token_id()
            offered.append(decoding)
        except ValueError:
            continue
    return offered


def info(name: str) -> None:
    facts = read_facts(name)
    lines = rows(facts)
    width = max(len(title) for title, _ in lines)
    for title, value in lines:
        print(f"{title:<{width}}  {value}")


def rows(facts: Facts) -> list[tuple[str, str]]:
    config = facts.config
    family = "Qwen3" if config.qk_norm else "Qwen2"
    is_wedlm = facts.model_type == MODEL_TYPE
    heads = f"{config.num_attention_heads} heads and {config.num_key_value_heads} key-value heads of {config.head_dim}"
    result = [
        ("checkpoint", facts.name),
        ("kind", f"WeDLM in the style of {family}" if is_wedlm else f"{family}, not WeDLM"),
        ("parameters", f"{facts.parameters:,}"),
        ("shape", f"{config.num_hidden_layers} layers, {config.hidden_size} wide, {heads}"),
        ("vocabulary", f"{config.vocab_size:,} tokens{'' if facts.has_tokenizer else ', no tokenizer'}"),
        ("context", f"{config.max_position_embeddings:,} tokens"),
        ("MASK token", mask(facts)),
        ("on disk", on_disk(facts)),
        ("memory of the weights", in_memory(facts.weight_bytes)),
        (
            f"memory of the cache, {CACHED_TOKENS:,} tokens",
            in_memory(lambda dtype: facts.cache_bytes(dtype, CACHED_TOKENS)),
        ),
    ]
    if not is_wedlm:
        return [*result, ("what to do", f"{remedy(facts.name, facts.model_type)}, which has then to be trained.")]
    return [
        *result,
        ("generation", settings(facts.generation)),
        ("decodings", ", ".join(facts.decodings)),
        ("its own code", "travels with it" if getattr(config, "auto_map", None) else "none, it loads where wedlm is"),
        *(("note", note) for note in facts.notes),
    ]


def mask(facts: Facts) -> str:
    if facts.config.mask_token_id is None:
        return "none"
    return " ".join(filter(None, [str(facts.config.mask_token_id), facts.mask_token]))


def on_disk(facts: Facts) -> str:
    if not facts.shards:
        return "no weights here"
    kinds = ", ".join(f"{size(count)} {dtype}" for dtype, count in facts.bytes_on_disk().items())
    return f"{kinds}, in {len(facts.shards)} file{'s' * (len(facts.shards) != 1)}"


def in_memory(num_bytes) -> str:
    return ", ".join(f"{size(num_bytes(dtype))} {dtype_name(dtype)}" for dtype in DTYPES_IN_MEMORY)


def size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.2f} MB"


def settings(generation: dict) -> str:
    return ", ".join(f"{name}={generation[name]}" for name in (*DEFAULTS, *SAMPLING) if name in generation)

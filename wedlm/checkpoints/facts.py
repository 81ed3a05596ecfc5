"""The facts about a checkpoint without its weights: its size, the decodings that it offers, and their limits."""

import os
from collections import Counter
from copy import copy
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import GenerationConfig

from wedlm.checkpoints.architectures import STOCK, check_architecture, wedlm_model
from wedlm.checkpoints.resolve import (
    FROM_MODEL,
    GENERATION_FILE,
    adapter_fields,
    checkpoint_folder,
    checkpoint_of,
    described_drafts,
    draft_adapter,
    read_config,
    read_generation_fields,
    require_wedlm,
    with_verified_decoding,
)
from wedlm.checkpoints.shards import DTYPES, Shard, read_shards, shard_names
from wedlm.checkpoints.tokenizer_files import TokenizerFiles
from wedlm.generation.parameters import AS_IT_IS, DECODINGS, DEFAULTS
from wedlm.generation.sampling import reads_no_text
from wedlm.generation.transformers_internals import processors_of, resolved_generation_config
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.model_type import MODEL_TYPE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


class Facts(NamedTuple):
    """The facts about a WeDLM checkpoint, or about a stock one that can be converted."""

    name: str
    adapter: Path | None  # of the draft adapter, if the name is one of an adapter
    model_type: str
    config: WeDLMConfig
    parameters: int
    shards: list[Shard]  # none, if the weights are not here
    mask_token: str | None  # as the tokenizer writes it
    has_tokenizer: bool
    generation_file: dict  # the fields of generation_config.json that generate() reads
    generation: dict  # the same, over the defaults
    decodings: list[str]
    notes: list[str]

    def weight_bytes(self, dtype: torch.dtype) -> int:
        return self.parameters * dtype.itemsize

    def cache_bytes(self, dtype: torch.dtype, tokens: int) -> int:
        config = self.config
        width = 2 * config.num_key_value_heads * config.head_dim  # keys and values
        return config.num_hidden_layers * width * tokens * dtype.itemsize

    def bytes_on_disk(self) -> Counter[str]:
        """The size of the weights on disk, by dtype."""
        total: Counter[str] = Counter()
        for tensor in (tensor for shard in self.shards for tensor in shard.tensors.values()):
            start, stop = tensor["data_offsets"]
            total[DTYPES[tensor["dtype"]]] += stop - start
        return total


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read_facts(name: str | os.PathLike) -> Facts:
    """Reads the facts about a checkpoint without loading its weights.

    Args:
        name (`str` or `os.PathLike`): A folder or a name on the Hub. A draft adapter stands for its base, which
            decodes as the adapter's generation_config.json says.
    """
    adapter, name = draft_adapter(name), checkpoint_of(name)
    folder = checkpoint_folder(name, with_weights=False)
    fields = read_config(name, folder)
    model_type = fields.get("model_type")
    if model_type in STOCK:
        check_architecture(fields, name, wanted=tuple(STOCK))
    else:
        require_wedlm(name, fields)
    is_wedlm = model_type == MODEL_TYPE
    config, model = wedlm_model(fields, name)
    generation = read_generation_fields(folder)
    if adapter is not None:
        generation = read_generation_fields(adapter) or with_verified_decoding(generation)
    if generation.get(FROM_MODEL):
        generation = {field: value for field, value in generation.items() if field not in DEFAULTS}
    if adapter is not None:
        model.config = copy(config)
        model.config.drafts = described_drafts(adapter_fields(adapter))
    tokenizer = TokenizerFiles.read(folder)
    tokens = {i: token for token, i in tokenizer.token_ids().items()}
    return Facts(
        name=str(name),
        adapter=adapter,
        model_type=model_type,
        config=config,
        parameters=model.num_parameters(),
        shards=read_shards(folder) if any((folder / file).exists() for file in shard_names(folder)) else [],
        mask_token=tokens.get(config.mask_token_id),
        has_tokenizer=tokenizer.has_tokens(),
        generation_file=generation,
        generation=(DEFAULTS if is_wedlm else {}) | generation,
        decodings=offered_decodings(model, generation) if is_wedlm else list(AS_IT_IS),
        notes=limits_of_parallel_decoding(model, generation) if is_wedlm else [],
    )


def offered_decodings(model: WeDLMForCausalLM, generation_fields: dict) -> list[str]:
    """The decodings that `generate()` does not refuse with these fields of generation_config.json."""
    offered = []
    for decoding in DECODINGS:
        try:
            resolved_generation_config(with_generation_fields(model, generation_fields), decoding=decoding)
            if decoding != "autoregressive":
                model.config.require_mask_token_id()
            offered.append(decoding)
        except Exception:  # a wrong field raises errors of many kinds
            continue
    return offered


def limits_of_parallel_decoding(model: WeDLMForCausalLM, generation_fields: dict) -> list[str]:
    """A sentence for each thing that keeps a checkpoint from decoding in parallel, or slows it down."""
    try:
        as_given = with_generation_fields(model, generation_fields)
        decoding = resolved_generation_config(as_given).decoding
        others = {name: value for name, value in generation_fields.items() if name not in DEFAULTS}
        reading = [f"{name}={value!r}" for name, value in others.items() if reads_text(as_given, name, value)]
    except Exception as error:  # a wrong field raises errors of many kinds
        return [f"generate() will refuse this checkpoint until it is changed: {error}"]
    if decoding == "autoregressive":
        try:
            resolved_generation_config(as_given, decoding="verified")
        except ValueError as error:
            return [f"This checkpoint decodes token by token only: {error}"]
    if not reading:
        return []
    return [
        f"{GENERATION_FILE} has {', '.join(reading)}: it reads the text, so that tokens are chosen left to right and "
        "fewer are filled per forward; remove it there for full speed."
    ]


def with_generation_fields(model: WeDLMForCausalLM, generation_fields: dict) -> WeDLMForCausalLM:
    """The same model with another generation_config; the weights are shared, and `model` keeps its own config."""
    other = copy(model)
    other.generation_config = GenerationConfig.from_dict(generation_fields)
    return other


def reads_text(model: WeDLMForCausalLM, name: str, value: object) -> bool:
    """Whether a field of generation_config.json asks for a processor that reads the text before a slot."""
    config = GenerationConfig.from_dict({"eos_token_id": [0], name: value})
    return not all(map(reads_no_text, processors_of(model, config, torch.zeros(1, 1, dtype=torch.long))))

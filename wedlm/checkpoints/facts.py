"""What a checkpoint is and can do, from its config and the headers of its weight files."""

import os
from collections import Counter
from typing import NamedTuple

import torch
from transformers import GenerationConfig

from wedlm.checkpoints.conversion_error import ConversionError
from wedlm.checkpoints.convert import (
    STOCK_CONFIGS,
    limits_of_parallel_decoding,
    read_generation_fields,
    wedlm_model,
)
from wedlm.checkpoints.load import CheckpointError, checkpoint_folder, read_config, require_wedlm
from wedlm.checkpoints.shards import DTYPES, Shard, read_shards, shard_names
from wedlm.checkpoints.tokenizer_files import TokenizerFiles
from wedlm.generation.support import DECODINGS, DEFAULTS
from wedlm.modeling_wedlm.configuration_wedlm import MODEL_TYPE, WeDLMConfig
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


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

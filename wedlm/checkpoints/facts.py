"""The facts about a checkpoint, from its config and the headers of its weight files: its size, and how it decodes."""

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch

from wedlm.checkpoints.architectures import STOCK, check_architecture, read_wedlm_config, wedlm_model
from wedlm.checkpoints.plain import is_plain, is_plain_generation, number_of_parameters
from wedlm.checkpoints.resolve import (
    FROM_MODEL,
    checkpoint_folder,
    checkpoint_of,
    draft_adapter,
    read_config,
    read_generation_fields,
    require_wedlm,
    with_verified_decoding,
)
from wedlm.checkpoints.shards import DTYPES, Shard, read_shards, shard_names
from wedlm.checkpoints.tokenizer_files import TokenizerFiles
from wedlm.generation.parameters import DECODINGS, DEFAULTS
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.model_type import MODEL_TYPE


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
        for shard in self.shards:
            for tensor in shard.tensors.values():
                start, stop = tensor["data_offsets"]
                total[DTYPES[tensor["dtype"]].name] += stop - start
        return total


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read_facts(name: str | os.PathLike) -> Facts:
    """Reads the facts about a checkpoint without loading its weights.

    Args:
        name (`str` or `os.PathLike`): A folder or a name on the Hub, of a WeDLM checkpoint or of a stock one that can
            be converted. A draft adapter stands for its base, which decodes as the adapter's generation_config.json
            says.
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
    config, generation = read_wedlm_config(fields, name), read_generation_fields(folder)
    if adapter is not None:
        generation = read_generation_fields(adapter) or with_verified_decoding(generation)
    if generation.get(FROM_MODEL):
        generation = {field: value for field, value in generation.items() if field not in DEFAULTS}
    if is_plain(config) and (not is_wedlm or is_plain_generation(generation)):
        parameters, notes = number_of_parameters(config), []
        decodings = ["autoregressive"] if config.mask_token_id is None else list(DECODINGS)
    else:
        from wedlm.checkpoints.limits import limits_of_parallel_decoding, offered_decodings  # takes seconds

        _, model = wedlm_model(fields, name)
        parameters, notes = model.num_parameters(), limits_of_parallel_decoding(model, generation)
        decodings = offered_decodings(model, generation)
    shards = read_shards(folder) if any((folder / file).exists() for file in shard_names(folder)) else []
    tokenizer = TokenizerFiles.read(folder)
    tokens = {i: token for token, i in tokenizer.token_ids().items()}
    return Facts(
        str(name),
        adapter,
        model_type,
        config,
        parameters,
        shards,
        tokens.get(config.mask_token_id),
        tokenizer.has_tokens(),
        generation,
        (DEFAULTS if is_wedlm else {}) | generation,
        decodings if is_wedlm else [],
        notes if is_wedlm else [],
    )

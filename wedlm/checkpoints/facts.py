"""The facts about a checkpoint without its weights: its size, the decodings that it offers, and their limits."""

import os
from collections import Counter
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from wedlm.checkpoints.architectures import STOCK, check_architecture, wedlm_model
from wedlm.checkpoints.plain import is_plain_generation, num_parameters, plain_config
from wedlm.checkpoints.resolve import (
    FROM_MODEL,
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
from wedlm.generation.parameters import AS_IT_IS, DEFAULTS, decodings_with, defaults_of, says_shifted, says_trained
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

if TYPE_CHECKING:
    from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig


class Facts(NamedTuple):
    """The facts about a WeDLM checkpoint, or about a stock one that can be converted."""

    name: str
    adapter: Path | None  # of the draft adapter, if the name is one of an adapter
    model_type: str
    config: "WeDLMConfig | SimpleNamespace"  # with the fields of one
    parameters: int
    shards: list[Shard]  # none, if the weights are not here
    mask_token: str | None  # as the tokenizer writes it
    has_tokenizer: bool
    generation_file: dict  # the fields of generation_config.json that generate() reads
    generation: dict  # the same, over the defaults
    decodings: list[str]
    notes: list[str]

    def weight_bytes(self, itemsize: int) -> int:
        return self.parameters * itemsize

    def cache_bytes(self, itemsize: int, tokens: int) -> int:
        config = self.config
        width = 2 * config.num_key_value_heads * config.head_dim  # keys and values
        return config.num_hidden_layers * width * tokens * itemsize

    def bytes_on_disk(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for tensor in (tensor for shard in self.shards for tensor in shard.tensors.values()):
            total[DTYPES[tensor.dtype]] += tensor.num_bytes()
        return total


def read_facts(name: str | os.PathLike) -> Facts:
    """Reads the facts about a checkpoint without loading its weights.

    A draft adapter stands for its base, which decodes as the adapter's generation_config.json says.
    """
    adapter, name = draft_adapter(name), checkpoint_of(name)
    folder = checkpoint_folder(name, with_weights=False)
    fields = read_config(name, folder)
    model_type = fields.get("model_type")
    if model_type not in STOCK:
        require_wedlm(name, fields)
    is_wedlm = model_type == MODEL_TYPE
    generation = read_generation_fields(folder)
    if adapter is not None:
        generation = read_generation_fields(adapter) or with_verified_decoding(generation)
    if generation.get(FROM_MODEL):
        generation = {field: value for field, value in generation.items() if field not in DEFAULTS}
    drafts = None if adapter is None else described_drafts(adapter_fields(adapter))
    config, decodings, notes = plain_config(fields), AS_IT_IS, []
    if config is not None and is_wedlm:
        has_drafts, shifts = drafts is not None or config.drafts is not None, (drafts or {}).get("mask_shift", False)
        if not shifts and not says_shifted(config):
            decodings = decodings_with(says_trained(config), has_drafts)
    if config is not None and (not is_wedlm or is_plain_generation(defaults_of(config) | generation, decodings)):
        parameters = num_parameters(config)
    else:
        config, parameters, decodings, notes = built(fields, name, generation, drafts)
    tokenizer = TokenizerFiles.read(folder)
    tokens = {i: token for token, i in tokenizer.token_ids().items()}
    return Facts(
        name=str(name),
        adapter=adapter,
        model_type=model_type,
        config=config,
        parameters=parameters,
        shards=read_shards(folder) if any((folder / file).exists() for file in shard_names(folder)) else [],
        mask_token=tokens.get(config.mask_token_id),
        has_tokenizer=tokenizer.has_tokens(),
        generation_file=generation,
        generation=(defaults_of(config) if is_wedlm else {}) | generation,
        decodings=list(decodings),
        notes=notes,
    )


def built(
    fields: dict, name: str | os.PathLike, generation: dict, drafts: dict | None
) -> "tuple[WeDLMConfig, int, list[str], list[str]]":
    """The config, the number of parameters, the decodings and the notes, of the model itself; takes seconds."""
    from wedlm.checkpoints.limits import limits_of_parallel_decoding, offered_decodings

    if fields["model_type"] in STOCK:
        check_architecture(fields, name, wanted=tuple(STOCK))
    config, model = wedlm_model(fields, name)
    if fields["model_type"] in STOCK:
        return config, model.num_parameters(), list(AS_IT_IS), []
    if drafts is not None:
        model.config = copy(config)
        model.config.drafts = drafts
    decodings, notes = offered_decodings(model, generation), limits_of_parallel_decoding(model, generation)
    return config, model.num_parameters(), decodings, notes

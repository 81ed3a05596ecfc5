"""Reads and checks the checkpoint that is published, without loading its weights."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from wedlm.checkpoints.architectures import WEDLM_CLASS
from wedlm.checkpoints.convert import read_folder
from wedlm.checkpoints.limits import limits_of_parallel_decoding, offered_decodings
from wedlm.checkpoints.load import adapter_on_disk
from wedlm.checkpoints.plan import Plan
from wedlm.checkpoints.resolve import (
    GENERATION_FILE,
    check_weights,
    read_config,
    read_generation_fields,
    require_tokenizer,
    require_wedlm,
    with_verified_decoding,
)
from wedlm.checkpoints.tokenizer_files import without
from wedlm.generation.parameters import defaults_of

# Fields of tokenizer_config.json that say where somebody once loaded the tokenizer from.
PLACES_OF_TOKENIZERS = {"name_or_path", "_name_or_path", "special_tokens_map_file", "tokenizer_file"}


class Checkpoint(NamedTuple):
    """A checkpoint, but for its weights."""

    adapter: Path | None  # the folder of the draft adapter that is published in it
    plan: Plan  # what is published; its notes are for whoever exports it
    parameters: int  # their number
    generation: dict[str, Any]  # the default parameters of parallel decoding
    decodings: list[str]  # those that it offers
    has_chat_template: bool
    limits: list[str]  # sentences on what it cannot do


def read_checkpoint(name: str, folder: Path, adapter: Path | None = None) -> Checkpoint:
    """Reads a checkpoint, and refuses one that is incomplete, no WeDLM, or that the draft adapter does not fit."""
    fields = read_config(name, folder)
    require_wedlm(name, fields)
    check_weights(name, folder)
    require_tokenizer(name, folder)
    plan = read_folder(name, folder, fields)
    config, model, changed, notes = plan.config, plan.model, plan.changed, plan.notes
    tokenizer_config = plan.tokenizer.file("tokenizer_config.json")
    if tokenizer_config.keys() & PLACES_OF_TOKENIZERS:
        changed["tokenizer_config.json"] = without(tokenizer_config, *PLACES_OF_TOKENIZERS)
    generation = read_generation_fields(folder)
    if not generation:
        generation = changed[GENERATION_FILE] = json.loads(model.generation_config.to_json_string())
    if adapter is not None:
        config.drafts, plan.added = adapter_on_disk(adapter, model, plan.shards)
        own = read_generation_fields(adapter)
        generation = changed[GENERATION_FILE] = own or with_verified_decoding(generation)
    if "max_new_tokens" in generation:
        notes.append(
            f"max_new_tokens={generation['max_new_tokens']} in {GENERATION_FILE} is left out; each caller chooses it."
        )
        generation = changed[GENERATION_FILE] = without(generation, "max_new_tokens")
    limits = limits_of_parallel_decoding(model, generation)
    notes += limits
    config.architectures, config.auto_map = [WEDLM_CLASS], None  # the package's code is written beside it
    return Checkpoint(
        adapter=adapter,
        plan=plan,
        parameters=model.num_parameters() + sum(value.numel() for value in plan.added.values()),
        generation={name: generation.get(name, default) for name, default in defaults_of(config).items()},
        decodings=offered_decodings(model, generation),
        has_chat_template=bool(tokenizer_config.get("chat_template")) or any(folder.glob("chat_template.*")),
        limits=limits,
    )

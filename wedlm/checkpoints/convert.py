"""Conversion of stock checkpoints to WeDLM and back: the same weights with another config, code and tokenizer."""

import os
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from wedlm.checkpoints.architectures import (
    KEPT_ENTRY,
    STOCK,
    WEDLM_CLASS,
    check_architecture,
    check_layers,
    check_shapes,
    families,
    stock_fields,
    stock_model_type,
    wedlm_model,
)
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.limits import limits_of_parallel_decoding, offered_decodings
from wedlm.checkpoints.new_folder import check_apart, check_links, check_out
from wedlm.checkpoints.plan import Plan, write
from wedlm.checkpoints.resolve import (
    CONFIG_FILE,
    FROM_MODEL,
    GENERATION_FILE,
    checkpoint_folder,
    download_weights,
    read_config,
    read_generation_fields,
)
from wedlm.checkpoints.shards import EMBEDDING, HEAD, read_json, read_shards
from wedlm.checkpoints.tokenizer_files import TokenizerFiles, for_stock
from wedlm.generation.parameters import DEFAULTS, defaults_of
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.model_type import MODEL_TYPE


class Conversion(NamedTuple):
    folder: Path
    mask_token_id: int | None  # on the way back, the one that stayed
    notes: list[str]  # what its user should know, a sentence each


def convert_to_wedlm(source: str | os.PathLike, out: str | os.PathLike, *, overwrite: bool = False) -> Conversion:
    """Converts a checkpoint into a WeDLM checkpoint.

    The weights are copied bit for bit, and the code of this package is put next to them. MASK gets a row of the
    embedding that no token uses, or else a new row, the mean of the others. The model is not trained to fill in MASK,
    so generation_config.json asks for verified decoding, or for autoregressive decoding where that is refused. Both
    write the same output as before. `out` appears when it is complete.

        convert_to_wedlm("Qwen/Qwen3-8B", "qwen3-8b-wedlm")

    Args:
        source (`str` or `os.PathLike`): The folder or the name on the Hub of a dense causal language model of the
            architecture Qwen2 (also Qwen2.5), Qwen3, Llama or Mistral in safetensors, or of a WeDLM checkpoint.
        out (`str` or `os.PathLike`): The folder that is written.
        overwrite (`bool`, *optional*, defaults to `False`): Whether to replace a checkpoint in `out`, once the new
            one is complete.
    """
    if not isinstance(source, str | os.PathLike):
        raise CheckpointError(
            f"source is a {type(source).__name__}, and files are converted; save it with its tokenizer and give the "
            "folder, or decode it as it is: model.generate(..., custom_generate=wedlm.verified)."
        )
    out = check_out(out, overwrite)
    plan = read_source(source, out, wanted=(*STOCK, MODEL_TYPE))
    config, generation_fields = plan.config, read_generation_fields(plan.folder)
    if plan.model_type != MODEL_TYPE:
        add_mask(plan, generation_fields)
        kept = restore_training(plan)
        generation_fields = plan.changed[GENERATION_FILE] = with_decoding(plan, generation_fields, kept)
    elif config.mask_token_id is None:
        plan.notes.append("The config names no mask_token_id, so the result loads, but masked prediction refuses it.")
    config.architectures, config.auto_map = [WEDLM_CLASS], None  # the code written beside it sets auto_map
    plan.notes.extend(limits_of_parallel_decoding(plan.model, generation_fields))
    write(plan, out, overwrite)
    return Conversion(out, config.mask_token_id, plan.notes)


def convert_to_autoregressive(
    source: str | os.PathLike, out: str | os.PathLike, *, overwrite: bool = False
) -> Conversion:
    """Converts a WeDLM checkpoint back into a plain checkpoint of the architecture that has its layers.

    The weights are copied bit for bit. The row and the token that `convert_to_wedlm` added for MASK are removed.

        convert_to_autoregressive("qwen3-8b-wedlm", "qwen3-8b-again")

    Args:
        source (`str` or `os.PathLike`): The folder or the name on the Hub of a WeDLM checkpoint.
        out (`str` or `os.PathLike`): The folder that is written.
        overwrite (`bool`, *optional*, defaults to `False`): Whether to replace a checkpoint in `out`, once the new
            one is complete.
    """
    out = check_out(out, overwrite)
    plan = read_source(source, out, wanted=(MODEL_TYPE,))
    config = plan.config
    if config.drafts is not None:
        raise CheckpointError(
            f"{source} contains a draft adapter, which has no place in a stock checkpoint; convert its base instead."
        )
    write(plan_of_stock(plan), out, overwrite)
    return Conversion(out, config.mask_token_id, plan.notes)


def read_source(source: str | os.PathLike, out: Path, wanted: tuple[str, ...]) -> Plan:
    """Reads and checks a checkpoint; weights on the Hub are downloaded once the config is known to fit."""
    folder = checkpoint_folder(source, with_weights=False)
    check_apart(out, folder)
    check_links(folder)
    fields = read_config(source, folder)
    check_architecture(fields, source, wanted)
    return read_folder(source, download_weights(source, folder), fields)


def read_folder(name: str | os.PathLike, folder: Path, fields: dict) -> Plan:
    """Reads and checks the weight files and the tokenizer of a checkpoint whose config.json has these fields."""
    config, model = wedlm_model(fields, name)
    shards = read_shards(folder)
    check_shapes(shards, model, name)
    tokenizer, changed, notes = TokenizerFiles.read(folder).without_code(name)
    tokenizer.check_rows(config.vocab_size, name)
    return Plan(name, folder, fields["model_type"], model, config, shards, tokenizer, changed, notes)


def plan_of_stock(plan: Plan) -> Plan:
    """Returns the plan of the plain checkpoint of a WeDLM, and unsets a MASK that its conversion added."""
    config, source = plan.config, plan.name
    model_type = stock_model_type(config)
    if model_type is None:
        raise CheckpointError(
            f"{source} has qk_norm={config.qk_norm} and attention_bias={config.attention_bias}, and none of "
            f"{families()} has both, so there is no stock class to convert it to."
        )
    check_layers(config.to_dict(), source, model_type)
    generation_fields = read_generation_fields(plan.folder)
    kept = kept_training(config, generation_fields)
    remove_mask(plan)
    plan.changed |= for_stock({**plan.tokenizer.contents, **plan.changed})
    if generation_fields.keys() & DEFAULTS.keys():  # parameters of parallel decoding
        plan.changed[GENERATION_FILE] = without_parallel_decoding(config, generation_fields)
    return replace(plan, config=stock_fields(config, model_type) | kept)


# --- What a stock checkpoint has no place for ---


def kept_training(config: WeDLMConfig, generation_fields: dict) -> dict:
    """The entry of a stock config.json by which `restore_training` knows a model that was trained in MASKs.

    transformers keeps entries that it does not know.
    """
    is_trained = config.mask_token_id is not None and (config.converted_from is None or config.mask_trained)
    if not is_trained or config.mask_row == "added":  # that row goes, and its training with it
        return {}
    given = {name: value for name, value in generation_fields.items() if name in DEFAULTS}
    if generation_fields.get(FROM_MODEL):  # transformers reads none of them
        given = {}
    shift = {"mask_shift": True} if config.mask_shift else {}
    decoding = defaults_of(config)["decoding"]
    return {KEPT_ENTRY: {"mask_token_id": config.mask_token_id, **shift, "decoding": decoding, **given}}


def kept_entry(folder: Path) -> dict:
    kept = read_json(folder / CONFIG_FILE).get(KEPT_ENTRY)
    return kept if isinstance(kept, dict) else {}


def restore_training(plan: Plan) -> dict:
    """Marks a model as trained in MASKs if it was before it became a stock one; returns its parameters of decoding."""
    kept = kept_entry(plan.folder)
    if kept.get("mask_token_id") != plan.config.mask_token_id:
        return {}
    plan.config.mask_trained, plan.config.mask_shift = True, bool(kept.get("mask_shift"))
    return {name: value for name, value in kept.items() if name in DEFAULTS}


# --- generation_config.json ---


def with_decoding(plan: Plan, generation_fields: dict, kept: dict) -> dict:
    """The content of generation_config.json with the parameters that were kept.

    The decoding is verified if none was kept, for it writes the text of the source; and autoregressive, which knows
    every kind of RoPE, and beams, if the model does not offer that one.
    """
    fields = (generation_fields or fields_of_no_file(plan.config)) | {"decoding": "verified"} | kept
    if fields["decoding"] not in offered_decodings(plan.model, fields):
        fields["decoding"] = "autoregressive"
    if FROM_MODEL in fields:
        fields[FROM_MODEL] = False  # transformers would take nothing else from the file
    return fields


def without_parallel_decoding(config: WeDLMConfig, generation_fields: dict) -> dict | None:
    """The content of generation_config.json without the parameters of parallel decoding; None for no such file."""
    fields = {name: value for name, value in generation_fields.items() if name not in DEFAULTS}
    if FROM_MODEL in fields:  # transformers writes it only where it is true
        fields[FROM_MODEL] = True
    return None if fields == fields_of_no_file(config) else fields


def fields_of_no_file(config: WeDLMConfig) -> dict:
    """The fields that transformers takes from the config of a model without a generation_config.json."""
    special = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {FROM_MODEL: True} | {name: token for name, token in special.items() if token is not None}


# --- MASK ---


def add_mask(plan: Plan, generation_fields: dict) -> None:
    """Chooses the MASK token of a stock checkpoint.

    A mask_token that the tokenizer has is kept, and a token that was MASK before the checkpoint became a stock one.
    Otherwise MASK gets a row that no token uses, or one more row.
    """
    config, tokenizer, source = plan.config, plan.tokenizer, plan.name
    tokens = tokenizer.token_ids()
    end_ids = named_ids("eos_token_id", config, generation_fields)
    existing = tokenizer.mask_token()
    if existing is not None:
        check_existing_mask(existing, tokens, end_ids, config, source)
        config.mask_token_id = tokens[existing]
        plan.notes.append(f"The tokenizer has a mask_token, {existing!r} (id {tokens[existing]}); it is kept as MASK.")
        return

    former = kept_entry(plan.folder).get("mask_token_id")
    if type(former) is int and former in tokens.values() and former < config.vocab_size and former not in end_ids:
        config.mask_token_id = former
        return

    used = {*tokens.values(), *end_ids}
    for name in ("bos_token_id", "pad_token_id"):
        used |= named_ids(name, config, generation_fields)
    row = unused_row(used, config.vocab_size) if tokenizer.has_tokens() else None
    config.mask_row = "unused"
    if row is None:
        row = config.vocab_size
        if row in used:
            raise CheckpointError(
                f"The tokenizer or config of {source} uses the token id {row}, and its model has {row} rows; correct "
                "vocab_size and resize the embeddings, or use the tokenizer that belongs to the model."
            )
        config.mask_row = "added"
        resize_vocabulary(plan, row + 1)
    config.mask_token_id = row
    if tokenizer.has_tokens():
        names = chain(["<|mask|>"], (f"<|mask_{i}|>" for i in count(2)))
        token = next(name for name in names if name not in tokens)
        plan.changed |= tokenizer.with_mask(token, row)
        plan.tokens = {**tokens, token: row}
    else:
        plan.notes.append(
            f"{source} has no tokenizer, and MASK gets row {row}; if a tokenizer is to name MASK, put it there and "
            "convert again."
        )


def unused_row(used: set[int], vocab_size: int) -> int | None:
    """The first row behind all used ones, or else the first gap between them; None if there is neither."""
    behind = max(used, default=-1) + 1
    if behind < vocab_size:
        return behind
    gap = next(i for i in count() if i not in used)
    return gap if gap < vocab_size else None


def named_ids(name: str, config: WeDLMConfig, generation_fields: dict) -> set[int]:
    """The token ids that the config and generation_config.json give for a field such as eos_token_id."""
    given = (getattr(config, name), generation_fields.get(name))
    return {i for value in given if value is not None for i in (value if isinstance(value, list) else [value])}


def check_existing_mask(
    token: str, tokens: dict[str, int], end_ids: set[int], config: WeDLMConfig, source: object
) -> None:
    token_id = tokens.get(token)
    if token_id is None or not 0 <= token_id < config.vocab_size:
        raise CheckpointError(
            f"The mask_token {token!r} of {source} has the id {token_id}, which is none of the {config.vocab_size} "
            "rows; correct or remove mask_token in tokenizer_config.json."
        )
    if token_id in {*end_ids, config.pad_token_id}:  # the padding row of an embedding learns nothing
        raise CheckpointError(
            f"The mask_token {token!r} of {source} also ends or pads the text; correct or remove mask_token in "
            "tokenizer_config.json."
        )


def remove_mask(plan: Plan) -> None:
    """Undoes `add_mask`."""
    config, tokenizer, mask_token_id = plan.config, plan.tokenizer, plan.config.mask_token_id
    if config.mask_row is None:
        if mask_token_id is not None:
            plan.notes.append(f"MASK, token {mask_token_id}, stays: no conversion to WeDLM added it.")
        return
    if config.mask_row == "added":
        if config.mask_trained:
            plan.notes.append(
                "The row of MASK goes, and its training with it: a WeDLM again, it is to be trained anew."
            )
        if mask_token_id != config.vocab_size - 1:
            raise CheckpointError(
                f"mask_token_id={mask_token_id} is not the last of the {config.vocab_size} rows of {plan.name} any "
                'more, though its config says mask_row="added"; set mask_row to null there to keep MASK.'
            )
        resize_vocabulary(plan, mask_token_id)
    config.mask_token_id = None
    if tokenizer.has_tokens():
        plan.changed |= tokenizer.without_mask(mask_token_id)
        plan.tokens = {token: i for token, i in tokenizer.token_ids().items() if i != mask_token_id}


def resize_vocabulary(plan: Plan, num_rows: int) -> None:
    plan.config.vocab_size = num_rows
    plan.num_rows = dict.fromkeys((EMBEDDING, HEAD), num_rows)

"""Conversion of stock checkpoints to WeDLM and back: the same weights with another config, code and tokenizer."""

import os
from pathlib import Path
from typing import NamedTuple

from wedlm.checkpoints.architectures import (
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
from wedlm.checkpoints.mask_token import MaskChange, put_mask_in, take_mask_out
from wedlm.checkpoints.new_folder import check_apart, check_links, check_out
from wedlm.checkpoints.plan import Plan, write
from wedlm.checkpoints.resolve import (
    FROM_MODEL,
    GENERATION_FILE,
    checkpoint_folder,
    download_weights,
    read_config,
    read_generation_fields,
)
from wedlm.checkpoints.shards import Shard, read_shards
from wedlm.checkpoints.tokenizer_files import TokenizerFiles, for_stock
from wedlm.generation.parameters import DEFAULTS
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.model_type import MODEL_TYPE
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


class Conversion(NamedTuple):
    """The result of a conversion: its folder, its MASK token, and notes for its user, a sentence each."""

    folder: Path
    mask_token_id: int | None
    notes: list[str]


class Source(NamedTuple):
    """The config of a checkpoint that is converted, and where the rest of it lies."""

    name: str | os.PathLike
    folder: Path
    model_type: str
    config: WeDLMConfig
    model: WeDLMForCausalLM  # on the meta device


def convert_to_wedlm(source: str | os.PathLike, out: str | os.PathLike, *, overwrite: bool = False) -> Conversion:
    """Writes a checkpoint as a WeDLM checkpoint.

    The weights are copied bit for bit, file by file, with the code of this package beside them. MASK gets a row that
    no token uses, or else one more row, the mean of the others. generation_config.json asks for verified decoding,
    or for autoregressive where that is refused; both write the same text as before, because the model was not trained
    to fill in MASK. Everything but
    the changed tokenizer is checked before the first byte is written, and `out` appears when it is complete.

        convert_to_wedlm("Qwen/Qwen3-8B", "qwen3-8b-wedlm")

    Args:
        source (`str` or `os.PathLike`): A folder or a name on the Hub, of a dense causal language model of the
            architecture Qwen2 (also Qwen2.5), Qwen3, Llama or Mistral in safetensors, or of a WeDLM checkpoint.
        out (`str` or `os.PathLike`): The folder that the result becomes.
        overwrite (`bool`, *optional*, defaults to `False`): Whether a checkpoint in `out` is replaced, once the new
            one is complete.

    Returns:
        `Conversion`: the folder, its `mask_token_id`, and `notes` on what its user should know.
    """
    out = check_out(out, overwrite)
    read = read_source(source, out, wanted=(*STOCK, MODEL_TYPE))
    shards = read_weights(read)
    generation_fields = read_generation_fields(read.folder)
    tokenizer, changed, tokenizer_notes = TokenizerFiles.read(read.folder).without_code(source)
    tokenizer.check_rows(read.config.vocab_size, source)
    if read.model_type != MODEL_TYPE:
        mask = put_mask_in(read.config, tokenizer, generation_fields, shards, source)
        generation_fields = changed[GENERATION_FILE] = with_text_of_source(read, generation_fields)
    elif read.config.mask_token_id is None:
        note = "The config names no mask_token_id, so the result loads, but masked prediction refuses it."
        mask = MaskChange(notes=[note])
    else:
        mask = MaskChange()
    read.config.architectures, read.config.auto_map = [WEDLM_CLASS], None  # the code written beside it sets auto_map
    notes = tokenizer_notes + mask.notes + limits_of_parallel_decoding(read.model, generation_fields)
    plan = Plan(read.config, shards, mask.num_rows, read.folder, changed | mask.files, mask.tokens, notes)
    write(plan, out, overwrite)
    return Conversion(out, read.config.mask_token_id, notes)


def convert_to_autoregressive(
    source: str | os.PathLike, out: str | os.PathLike, *, overwrite: bool = False
) -> Conversion:
    """Writes a WeDLM checkpoint as a plain checkpoint of the architecture that has its layers.

    The weights are copied bit for bit. The row and the token that `convert_to_wedlm` added for MASK are taken out.

        convert_to_autoregressive("qwen3-8b-wedlm", "qwen3-8b-again")

    Args:
        source (`str` or `os.PathLike`): A folder or a name on the Hub, of a WeDLM checkpoint.
        out (`str` or `os.PathLike`): The folder that the result becomes.
        overwrite (`bool`, *optional*, defaults to `False`): Whether a checkpoint in `out` is replaced, once the new
            one is complete.

    Returns:
        `Conversion`: the folder, the `mask_token_id` that stayed if one did, and `notes` on what its user should
        know.
    """
    out = check_out(out, overwrite)
    read = read_source(source, out, wanted=(MODEL_TYPE,))
    if read.config.drafts is not None:
        raise CheckpointError(
            f"{source} contains a draft adapter, which has no place in a stock checkpoint; convert its base instead."
        )
    plan = plan_of_stock(read, stock_type_of(read), read_weights(read))
    write(plan, out, overwrite)
    return Conversion(out, read.config.mask_token_id, plan.notes)


def stock_type_of(read: Source) -> str:
    """Returns the model_type of the plain checkpoint that has the layers of a WeDLM."""
    model_type = stock_model_type(read.config)
    if model_type is None:
        raise CheckpointError(
            f"{read.name} has qk_norm={read.config.qk_norm} and attention_bias={read.config.attention_bias}, and none "
            f"of {families()} has both, so there is no stock class to convert it to."
        )
    check_layers(read.config.to_dict(), read.name, model_type)
    return model_type


def plan_of_stock(read: Source, model_type: str, shards: list[Shard]) -> Plan:
    """Returns the plan of the plain checkpoint that has the layers of a WeDLM.

    Args:
        read (`Source`): The WeDLM checkpoint. A MASK that its conversion added is unset in its config.
        model_type (`str`): The model_type of the plain checkpoint.
        shards (`list[Shard]`): The weight files of the WeDLM.
    """
    source = read.name
    tokenizer, changed, tokenizer_notes = TokenizerFiles.read(read.folder).without_code(source)
    tokenizer.check_rows(read.config.vocab_size, source)
    mask = take_mask_out(read.config, tokenizer, shards, source)
    changed |= mask.files
    changed |= for_stock({**tokenizer.contents, **changed})
    generation_fields = read_generation_fields(read.folder)
    if generation_fields.keys() & DEFAULTS.keys():  # parameters of parallel decoding
        changed[GENERATION_FILE] = without_parallel_decoding(read.config, generation_fields)
    config = stock_fields(read.config, model_type)
    notes = tokenizer_notes + mask.notes
    return Plan(config, shards, mask.num_rows, read.folder, changed, mask.tokens, notes)


def with_text_of_source(source: Source, generation_fields: dict) -> dict:
    """The content of generation_config.json for a model that was not trained to fill in MASK.

    Verified decoding writes the text that the model wrote before its conversion, and so does autoregressive decoding,
    which knows every kind of RoPE and beams too. Streaming would write nonsense.

    Args:
        source (`Source`): The checkpoint, whose config has the special tokens if there is no such file.
        generation_fields (`dict`): The content so far, empty if there is no such file.
    """
    fields = dict(generation_fields or fields_of_no_file(source.config))
    offered = offered_decodings(source.model, fields)
    fields["decoding"] = "verified" if "verified" in offered else "autoregressive"
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


def read_source(source: str | os.PathLike, out: Path, wanted: tuple[str, ...]) -> Source:
    """Reads and checks a config; a checkpoint on the Hub is asked for its weights once its config is known to fit."""
    folder = checkpoint_folder(source, with_weights=False)
    check_apart(out, folder)
    check_links(folder)
    fields = read_config(source, folder)
    check_architecture(fields, source, wanted)
    folder = download_weights(source, folder)
    config, model = wedlm_model(fields, source)
    return Source(source, folder, fields["model_type"], config, model)


def read_weights(source: Source) -> list[Shard]:
    shards = read_shards(source.folder)
    check_shapes(shards, source.model, source.name)
    return shards

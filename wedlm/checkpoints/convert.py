"""Qwen checkpoints become WeDLM checkpoints, and back: the same weights with another config, code and tokenizer.

All but the new tokenizer is checked before the first byte is written. The result is written beside its place, under
the name `OUT.incomplete-...`, and renamed when it is complete.
"""

import json
import os
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from huggingface_hub.utils import tqdm
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen3Config

from wedlm.checkpoints.conversion_error import ConversionError
from wedlm.checkpoints.new_folder import check_apart, check_out, check_space, complete_or_absent, leftovers
from wedlm.checkpoints.shards import (
    INDEX_FILE,
    Shard,
    num_bytes_after,
    read_index,
    read_json,
    read_shards,
    shard_names,
    write_shard,
)
from wedlm.checkpoints.tokenizer_files import TokenizerFiles, for_older_versions, unused_row
from wedlm.generation.reader_kinds import PLAIN_PROCESSORS
from wedlm.generation.support import DEFAULTS, check_support
from wedlm.modeling_wedlm.configuration_wedlm import MODEL_TYPE, WeDLMConfig
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

STOCK_CONFIGS = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}
STOCK_CLASSES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
GENERATION_FILE = "generation_config.json"
# What goes along with the weights and the config, as patterns of names. Code does not: ours is written, no other is.
COMPANIONS = (
    GENERATION_FILE, "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja",
    "LICENSE*", "NOTICE*",
)  # fmt: skip
SPARE_BYTES = 32 * 2**20  # of disk space, for config, tokenizer and code


class Conversion(NamedTuple):
    """What a conversion wrote: the folder, its MASK token, and what its user should know, a sentence each."""

    folder: Path
    mask_token_id: int | None
    notes: list[str]


class Plan(NamedTuple):
    """Everything that is going to be written."""

    config: WeDLMConfig | dict  # a stock config is written as it is here
    shards: list[Shard]
    num_rows: dict[str, int]  # of the tensors that gain or lose a row
    folder: Path  # where the companions are
    changed: dict[str, dict]  # companions with another content
    tokens: dict[str, int] | None  # what the changed tokenizer must hold; None if it does not change
    notes: list[str]


def one_line(error: Exception) -> str:
    return textwrap.shorten(str(error), 300).rstrip(".")


def convert_to_wedlm(source: str | os.PathLike, out: str | os.PathLike, *, overwrite: bool = False) -> Conversion:
    """Writes the checkpoint `source`, a folder or a name on the Hub, to the folder `out` as a WeDLM checkpoint.

    `source` is a dense Qwen2, Qwen2.5 or Qwen3 causal language model in safetensors, or a WeDLM checkpoint. Its
    weights are copied bit for bit, file by file, with our code beside them. MASK gets a row that no token uses, or
    else one more row, the mean of the others. With `overwrite`, a checkpoint in `out` is replaced when the new one is
    complete.

        convert_to_wedlm("Qwen/Qwen3-8B", "qwen3-8b-wedlm")
    """
    out = check_out(out, overwrite)
    folder, fields = fetch(source, out)
    config, model = wedlm_model(fields, source)
    shards = read_shards(folder)
    check_shapes(shards, model, source)
    generation_fields = read_generation_fields(folder)
    tokenizer = TokenizerFiles.read(folder)
    notes, changed, num_rows = [], {}, {}
    if fields["model_type"] == MODEL_TYPE:
        if config.mask_token_id is None:
            notes.append("The config names no mask_token_id, so the result loads, and masked prediction refuses it.")
    else:
        changed, num_rows = choose_mask(config, tokenizer, generation_fields, shards, source, notes)
    config.architectures, config.auto_map = ["WeDLMForCausalLM"], None  # our code's, which is written beside it
    notes += limits_of_parallel_decoding(model, generation_fields)
    tokens = None
    if changed:
        tokens = {**tokenizer.token_ids(), changed["tokenizer_config.json"]["mask_token"]: config.mask_token_id}
    write(Plan(config, shards, num_rows, folder, changed, tokens, notes), out, overwrite)
    return Conversion(out, config.mask_token_id, notes)


def convert_to_autoregressive(
    source: str | os.PathLike, out: str | os.PathLike, *, overwrite: bool = False
) -> Conversion:
    """Writes the WeDLM checkpoint `source` to the folder `out` as a plain Qwen2 or Qwen3 checkpoint.

    Weights are copied bit for bit. What `convert_to_wedlm` added for MASK, a row and a token, is taken out again.

        convert_to_autoregressive("qwen3-8b-wedlm", "qwen3-8b-again")
    """
    out = check_out(out, overwrite)
    folder, fields = fetch(source, out, wanted=(MODEL_TYPE,))
    config, model = wedlm_model(fields, source)
    if config.qk_norm == config.attention_bias:
        raise ConversionError(
            f"{source} has qk_norm={config.qk_norm} and attention_bias={config.attention_bias}; Qwen3 has the norms "
            "only and Qwen2 the biases only, so there is no stock class to convert it to."
        )
    shards = read_shards(folder)
    check_shapes(shards, model, source)
    notes, changed, num_rows, tokens = [], {}, {}, None
    tokenizer = TokenizerFiles.read(folder)
    mask_token_id = config.mask_token_id
    if config.mask_row is None:
        if mask_token_id is not None:
            notes.append(f"MASK, token {mask_token_id}, stays: conversion from Qwen did not add it.")
    else:
        if config.mask_row == "added":
            if mask_token_id != config.vocab_size - 1:
                raise ConversionError(
                    f"mask_token_id={mask_token_id} is not the last of the {config.vocab_size} rows of {source} any "
                    'more, though its config says mask_row="added"; set mask_row to null there to keep MASK.'
                )
            config.vocab_size -= 1
            num_rows = rows_of_vocabulary(shards, config.vocab_size)
        config.mask_token_id = None
        if tokenizer.has_tokens():
            changed = tokenizer.without_mask(mask_token_id)
            tokens = {token: i for token, i in tokenizer.token_ids().items() if i != mask_token_id}
    changed |= for_older_versions({**tokenizer.contents, **changed})
    generation_fields = read_generation_fields(folder)
    if generation_fields.keys() & DEFAULTS.keys():  # the four of parallel decoding
        kept = {name: value for name, value in generation_fields.items() if name not in DEFAULTS}
        changed[GENERATION_FILE] = kept
    write(Plan(stock_fields(config), shards, num_rows, folder, changed, tokens, notes), out, overwrite)
    return Conversion(out, config.mask_token_id, notes)


# --- What is read ---


def fetch(source: str | os.PathLike, out: Path, wanted=(*STOCK_CONFIGS, MODEL_TYPE)) -> tuple[Path, dict]:
    """The folder of `source` and its config.json. From the Hub, weights are asked for only once the config fits."""

    def from_hub(patterns, revision=None) -> Path:
        try:
            return Path(snapshot_download(str(source), revision=revision, allow_patterns=patterns))
        except Exception as error:  # of any kind: the Hub's, the network's, the disk's
            raise ConversionError(
                f"{source} is no folder, and cannot be had from the Hub ({one_line(error)}); correct the name, or "
                "download it first and give the folder."
            ) from error

    is_folder = Path(source).is_dir()
    if not is_folder and not re.fullmatch(r"[\w.-]+/[\w.-]+", str(source)):
        raise ConversionError(f"{source} is neither a folder nor a name on the Hub such as Qwen/Qwen3-8B.")
    folder = Path(source) if is_folder else from_hub(["config.json", INDEX_FILE, *COMPANIONS])
    check_apart(out, folder)
    if not (folder / "config.json").exists():
        if (folder / "adapter_config.json").exists():
            raise ConversionError(f"{source} is an adapter of PEFT; merge it into its model first, and convert that.")
        raise ConversionError(f"{source} has no config.json; give the folder of a checkpoint.")
    fields = read_json(folder / "config.json")
    check_architecture(fields, source, wanted)
    if not is_folder:
        # The name of the folder is the commit: the weights belong to the config that was read.
        folder = from_hub(["config.json", INDEX_FILE, *COMPANIONS, *shard_names(folder)], revision=folder.name)
    return folder, fields


def read_generation_fields(folder: Path) -> dict:
    return read_json(folder / GENERATION_FILE) if (folder / GENERATION_FILE).exists() else {}


def check_architecture(fields: dict, source: object, wanted: tuple[str, ...]) -> None:
    model_type, architectures = fields.get("model_type"), fields.get("architectures")
    supported = " and ".join(
        "a WeDLM checkpoint" if name == MODEL_TYPE else f"dense {STOCK_CLASSES[name]}" for name in wanted
    )
    if model_type not in wanted:
        kind = f"{model_type!r}, a mixture of experts" if "moe" in str(model_type) else repr(model_type)
        remedy = "" if MODEL_TYPE in wanted and len(wanted) > 1 else "; without --to-autoregressive Qwen is converted"
        raise ConversionError(f"{source} is of model_type {kind}; supported is {supported}{remedy}.")
    expected = STOCK_CLASSES.get(model_type, "WeDLMForCausalLM")
    if architectures is not None and architectures != [expected]:
        raise ConversionError(
            f"{source} has architectures={architectures!r}; supported is {expected}, so start from that model."
        )
    if fields.get("quantization_config") is not None:
        raise ConversionError(
            f"{source} is quantized (its config has a quantization_config); start from what it was before."
        )
    if model_type == "qwen3" and fields.get("attention_bias"):
        raise ConversionError(
            f"{source} has attention_bias=True, which in Qwen3 puts a bias on the output projection too; WeDLM has "
            "none there, and no released Qwen3 has."
        )


def wedlm_model(fields: dict, source: object) -> tuple[WeDLMConfig, WeDLMForCausalLM]:
    """The config of the result, MASK still to be chosen, and its model without weights."""
    try:
        if fields["model_type"] == MODEL_TYPE:
            config = WeDLMConfig.from_dict(fields)
        else:
            # By way of the stock class, so that what the file leaves out is what that class takes for it.
            stock = STOCK_CONFIGS[fields["model_type"]].from_dict(fields).to_dict()
            for name in ("model_type", "transformers_version", "auto_map", "mask_token_id", "mask_row"):
                stock.pop(name, None)
            if fields["model_type"] == "qwen2":
                stock |= {"attention_bias": True, "qk_norm": False}
                if stock.get("head_dim") is None:
                    stock["head_dim"] = stock["hidden_size"] // stock["num_attention_heads"]
            config = WeDLMConfig(**stock)
        with torch.device("meta"):
            return config, WeDLMForCausalLM(config)
    except Exception as error:  # of many kinds, by what is wrong with the config
        raise ConversionError(
            f"No model can be built from the config.json of {source} ({one_line(error)}); correct it."
        ) from error


def check_shapes(shards: list[Shard], model: WeDLMForCausalLM, source: object) -> None:
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tensor["shape"] for shard in shards for name, tensor in shard.tensors.items()}
    optional = {HEAD} if model.config.tie_word_embeddings else set()
    for name in sorted(expected.keys() - found.keys() - optional):
        raise ConversionError(f"{source} has no weight {name}, which its config asks for; correct one of the two.")
    for name in sorted(found):
        if name not in expected:
            if name.endswith("rotary_emb.inv_freq"):  # a buffer that old checkpoints hold, and every class computes
                continue
            raise ConversionError(f"{source} has a weight {name}, which its config has no place for; correct one.")
        if found[name] != expected[name]:
            raise ConversionError(
                f"{name} of {source} has the shape {found[name]}, and by its config {expected[name]}; correct one of "
                "the two."
            )


def choose_mask(
    config: WeDLMConfig,
    tokenizer: TokenizerFiles,
    generation_fields: dict,
    shards: list[Shard],
    source: object,
    notes: list[str],
) -> tuple[dict[str, dict], dict[str, int]]:
    """Sets MASK in `config`; returns the tokenizer files that change, and the new number of rows of tensors."""

    def named_ids(name: str) -> set[int]:
        ids = set()
        for value in (getattr(config, name), generation_fields.get(name)):
            values = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(i) is int for i in values):
                raise ConversionError(f"{name} of {source} is {value!r}, which is no token id; correct it.")
            ids |= set(values)
        return ids

    tokens, end_ids = tokenizer.token_ids(), named_ids("eos_token_id")
    existing = tokenizer.mask_token()
    if existing is not None:
        if not 0 <= tokens.get(existing, -1) < config.vocab_size:
            raise ConversionError(
                f"The mask_token {existing!r} of {source} has the id {tokens.get(existing)}, which is none of the "
                f"{config.vocab_size} rows; correct or remove mask_token in tokenizer_config.json."
            )
        if tokens[existing] in {*end_ids, config.pad_token_id}:  # the padding row of an embedding learns nothing
            raise ConversionError(
                f"The mask_token {existing!r} of {source} also ends or pads the text; correct or remove mask_token "
                "in tokenizer_config.json."
            )
        config.mask_token_id = tokens[existing]
        notes.append(f"The tokenizer has a mask_token, {existing!r} (id {tokens[existing]}); it is kept as MASK.")
        return {}, {}
    used = {*tokens.values(), *end_ids, *named_ids("bos_token_id"), *named_ids("pad_token_id")}
    row = unused_row(used, config.vocab_size) if tokenizer.has_tokens() else None
    num_rows = {}
    if row is None:
        row, config.vocab_size = config.vocab_size, config.vocab_size + 1
        num_rows = rows_of_vocabulary(shards, config.vocab_size)
        if row in used:
            raise ConversionError(
                f"The tokenizer or config of {source} uses the token id {row}, and its model has {row} rows; correct "
                "vocab_size and resize the embeddings, or use the tokenizer that belongs to the model."
            )
    config.mask_token_id, config.mask_row = row, "added" if num_rows else "unused"
    if not tokenizer.has_tokens():
        notes.append(
            f"{source} has no tokenizer, and row {row} is MASK's; put the tokenizer there and convert again, if its "
            "mask_token is to be that row."
        )
        return {}, num_rows
    return tokenizer.with_mask(tokenizer.unused_name(), row), num_rows


def rows_of_vocabulary(shards: list[Shard], num_rows: int) -> dict[str, int]:
    return {name: num_rows for name in (EMBEDDING, HEAD) if any(name in shard.tensors for shard in shards)}


def limits_of_parallel_decoding(model: WeDLMForCausalLM, generation_fields: dict) -> list[str]:
    """A sentence for each thing that keeps this checkpoint from decoding in parallel, or slows it down."""
    notes = []

    def reads_text(name: str, value: object) -> bool:
        config = GenerationConfig.from_dict({"eos_token_id": [0], name: value})
        model._prepare_special_tokens(config, device="cpu")
        processors = model._get_logits_processor(
            config, input_ids_seq_length=1, encoder_input_ids=torch.zeros(1, 1, dtype=torch.long), device="cpu"
        )
        return any(type(processor) not in PLAIN_PROCESSORS for processor in processors)

    try:
        model.generation_config = GenerationConfig.from_dict(generation_fields)
        check_support(model, model._prepare_generation_config(None)[0], {})
        readers = [f"{name}={value!r}" for name, value in generation_fields.items() if reads_text(name, value)]
    except (ValueError, TypeError, StrictDataclassError) as error:
        return [f"generate() will refuse this checkpoint until it is changed: {error}"]
    if readers:
        notes.append(
            f"{GENERATION_FILE} has {', '.join(readers)}: it reads the text, so that tokens are chosen left to right "
            "and fewer are filled per forward; remove it there for full speed."
        )
    return notes


def stock_fields(config: WeDLMConfig) -> dict:
    """The config.json of Qwen, in the flat form that engines with an older transformers read as well."""
    model_type = "qwen3" if config.qk_norm else "qwen2"
    fields = config.to_dict()
    for name in ("model_type", "auto_map", "mask_token_id", "mask_row", "qk_norm"):
        fields.pop(name, None)
    if model_type == "qwen2":
        del fields["attention_bias"]
        if fields["head_dim"] * fields["num_attention_heads"] == fields["hidden_size"]:
            del fields["head_dim"]  # Qwen2 computes it
    fields = STOCK_CONFIGS[model_type](**fields).to_diff_dict()
    rope = fields.pop("rope_parameters")
    fields["rope_theta"] = rope.pop("rope_theta")
    fields["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    fields["torch_dtype"] = fields.pop("dtype", None)
    fields["architectures"] = [STOCK_CLASSES[model_type]]
    return fields


# --- What is written ---


def write_json(path: Path, content: dict) -> None:
    # As transformers and tokenizers write them, so that what is put in and taken out again leaves the same file.
    end = "" if path.name == "tokenizer.json" else "\n"
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + end, encoding="utf-8")


def companions(folder: Path) -> Iterator[Path]:
    for pattern in COMPANIONS:
        yield from (path.relative_to(folder) for path in sorted(folder.glob(pattern)) if path.is_file())


def write_companions(plan: Plan, folder: Path) -> None:
    """The config and all that is small."""
    for name in companions(plan.folder):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(plan.folder / name, folder / name)
    for name, content in plan.changed.items():
        write_json(folder / name, content)
    if isinstance(plan.config, dict):
        write_json(folder / "config.json", plan.config)
    else:
        plan.config.save_pretrained(folder)  # the code too


def check_tokenizer(plan: Plan, folder: Path) -> None:
    """The tokenizer with its changes is loaded, and every token must have the id that it is expected to have."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # of any kind, by what is wrong with the files
        raise ConversionError(
            f"The tokenizer in {plan.folder} cannot be loaded ({one_line(error)}); correct its files."
        ) from error
    vocabulary = tokenizer.get_vocab()
    moved = [token for token, i in plan.tokens.items() if vocabulary.get(token) != i]
    takes_out = isinstance(plan.config, dict)
    if moved or tokenizer.mask_token_id != (None if takes_out else plan.config.mask_token_id):
        raise ConversionError(
            f"With MASK {'taken out' if takes_out else 'put in'}, the tokenizer in {plan.folder} gives other ids to "
            f"{moved[:3] or 'MASK'}; "
            + (
                "set mask_row to null in config.json there, which keeps MASK."
                if takes_out
                else "load it and save it with save_pretrained() first."
            )
        )


def write(plan: Plan, out: Path, overwrite: bool) -> None:
    try:
        if old := leftovers(out):
            plan.notes.append(f"A conversion that was killed, or is still running, left {', '.join(old)}.")
        check_space(out, sum(num_bytes_after(shard, plan.num_rows) for shard in plan.shards) + SPARE_BYTES)
        with complete_or_absent(out, overwrite) as folder:
            write_companions(plan, folder)
            if plan.tokens is not None:
                check_tokenizer(plan, folder)
            write_weights(plan, folder)
    except OSError as error:
        raise ConversionError(
            f"{out} could not be written ({error}) and is as it was; make room or give access there, or choose "
            "another place, and convert again."
        ) from error


def write_weights(plan: Plan, folder: Path) -> None:
    for i, shard in enumerate(plan.shards, start=1):
        title = f"{shard.path.name} ({i}/{len(plan.shards)})"
        with tqdm(total=num_bytes_after(shard, plan.num_rows), unit="B", unit_scale=True, desc=title) as bar:
            write_shard(shard, folder / shard.path.name, plan.num_rows, bar.update)
    index = read_index(plan.folder)
    if index is None:
        return
    for shard in plan.shards:
        for name in plan.num_rows.keys() & shard.tensors.keys():
            tensor = shard.tensors[name]
            start, stop = tensor["data_offsets"]
            rows, width = tensor["shape"]
            for total, size in (("total_size", (stop - start) // rows), ("total_parameters", width)):
                if total in index["metadata"]:
                    index["metadata"][total] += (plan.num_rows[name] - rows) * size
    write_json(folder / INDEX_FILE, index)

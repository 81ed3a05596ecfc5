"""A checkpoint that is going to be written, and the writing of it."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from huggingface_hub.utils import tqdm
from transformers import PreTrainedTokenizerBase

from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.new_folder import check_space, complete_or_absent, leftovers
from wedlm.checkpoints.resolve import COMPANIONS, CONFIG_FILE, TOKENIZER_FILES
from wedlm.checkpoints.shards import INDEX_FILE, Shard, read_index, read_json, read_shard, write_shard
from wedlm.checkpoints.tokenizer_files import TokenizerFiles, load_tokenizer, with_class
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM

SPARE_BYTES = 32 * 2**20  # of disk space, for config, tokenizer, code and a row more


@dataclass
class Plan:
    """A checkpoint that was read and checked, and what becomes of it."""

    name: str | os.PathLike  # as its user gave it
    folder: Path
    model_type: str
    model: WeDLMForCausalLM  # on the meta device
    config: WeDLMConfig | dict  # the one to write; a dict is the config.json of a stock checkpoint
    shards: list[Shard]
    tokenizer: TokenizerFiles  # without code of its own
    changed: dict[str, dict | None]  # small files with their new content; None for one that is left out
    notes: list[str]  # what its user should know, a sentence each
    num_rows: dict[str, int] = field(default_factory=dict)  # of the weights that gain or lose a row
    tokens: dict[str, int] | None = None  # ids that the changed tokenizer must give; None if it does not change
    added: dict[str, torch.Tensor] = field(default_factory=dict)  # weights that the last file gains

    def num_bytes(self) -> int:
        added = sum(value.nbytes for value in self.added.values())
        return sum(shard.num_bytes() for shard in self.shards) + added + SPARE_BYTES


def write(plan: Plan, out: Path, overwrite: bool, fill: Callable[[Plan, Path], None] | None = None) -> None:
    """Writes all of a checkpoint to `out`, which `check_out` has accepted, or nothing.

    The files are written by `fill`, which is `write_files` by default.
    """
    try:
        if old := leftovers(out):
            plan.notes.append(f"A conversion that was killed, or is still running, left {', '.join(old)}.")
        check_space(out, plan.num_bytes())
        with complete_or_absent(out, overwrite) as folder:
            (fill or write_files)(plan, folder)
    except OSError as error:
        raise CheckpointError(
            f"{out} could not be written ({error}) and is as it was; make room or give access there, or choose "
            "another place, and convert again."
        ) from error


def write_files(plan: Plan, folder: Path) -> None:
    write_companions(plan, folder)
    if any((folder / name).exists() for name in TOKENIZER_FILES):
        check_tokenizer(plan, folder)
    write_weights(plan, folder)


def write_companions(plan: Plan, folder: Path) -> None:
    """Writes the small files: the config, the code that belongs to it, the tokenizer and licences."""
    copy_files(plan.folder, folder, COMPANIONS)
    for name, content in plan.changed.items():
        if content is None:
            (folder / name).unlink()
        else:
            write_json(folder / name, content)
    if isinstance(plan.config, dict):
        write_json(folder / CONFIG_FILE, plan.config)
    else:
        plan.config.save_pretrained(folder)  # the code too


def copy_files(source: Path, folder: Path, patterns: Iterable[str]) -> None:
    for path in (path for pattern in patterns for path in sorted(source.glob(pattern)) if path.is_file()):
        target = folder / path.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)


def write_json(path: Path, content: dict) -> None:
    # In the form of transformers and tokenizers, so that MASK put in and taken out again leaves the same bytes.
    end = "" if path.name == "tokenizer.json" else "\n"
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + end, encoding="utf-8")


def form_of(tokenizer: PreTrainedTokenizerBase) -> dict | None:
    """Everything that decides how a tokenizer splits and joins a text, but the ids and MASK."""
    if not tokenizer.is_fast:
        return None
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model = {name: value for name, value in content["model"].items() if name not in ("vocab", "merges")}
    added = {token["content"]: {**token, "id": None} for token in content["added_tokens"]}
    added.pop(tokenizer.mask_token, None)
    return {**content, "model": model, "added_tokens": added}


def check_tokenizer(plan: Plan, folder: Path) -> None:
    """Makes AutoTokenizer load the tokenizer as in the source, and compares the ids if they were changed.

    AutoTokenizer chooses the class by `model_type` too: a Mistral that names LlamaTokenizer gets TokenizersBackend,
    which reads tokenizer.json as it is.
    """
    tokenizer = load_tokenizer(folder, plan.folder)
    if not TokenizerFiles.read(plan.folder).has_code():  # the source cannot be loaded without it
        source = load_tokenizer(plan.folder, plan.folder)
        if form_of(tokenizer) != form_of(source):
            path, name = folder / "tokenizer_config.json", type(source).__name__
            write_json(path, with_class(read_json(path) if path.exists() else {}, name))
            tokenizer = load_tokenizer(folder, plan.folder)
        if form_of(tokenizer) != form_of(source):
            raise CheckpointError(
                f"The tokenizer in {plan.folder} is a {name}, and beside another config.json it becomes another one; "
                "load it and save it with save_pretrained() first."
            )
    if plan.tokens is None:
        return
    if isinstance(plan.config, dict):
        mask_token_id, change = None, "taken out"
        remedy = "set mask_row to null in config.json there, which keeps MASK"
    else:
        mask_token_id, change = plan.config.mask_token_id, "put in"
        remedy = "load it and save it with save_pretrained() first"
    vocabulary = tokenizer.get_vocab()
    moved = [token for token, i in plan.tokens.items() if vocabulary.get(token) != i]
    if moved or tokenizer.mask_token_id != mask_token_id:
        raise CheckpointError(
            f"With MASK {change}, the tokenizer in {plan.folder} gives other ids to {moved[:3] or 'MASK'}; {remedy}."
        )


def write_weights(plan: Plan, folder: Path) -> None:
    """Copies the weight files with their changes, and writes the index that belongs to them."""
    last = plan.shards[-1]
    for shard in tqdm(plan.shards, desc="Writing weights", unit="file"):
        write_shard(shard, folder / shard.path.name, plan.num_rows, plan.added if shard is last else {})
    index = read_index(plan.folder)
    if index is not None:
        tensors = [each for shard in plan.shards for each in read_shard(folder / shard.path.name).tensors.values()]
        totals = {
            "total_size": sum(tensor.num_bytes() for tensor in tensors),
            "total_parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        }
        index["metadata"] |= {name: total for name, total in totals.items() if name in index["metadata"]}
        index["weight_map"] |= dict.fromkeys(plan.added, last.path.name)
        write_json(folder / INDEX_FILE, index)

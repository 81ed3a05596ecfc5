"""A checkpoint that is going to be written, and the writing of it."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub.utils import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.new_folder import check_space, complete_or_absent, leftovers
from wedlm.checkpoints.resolve import COMPANIONS, CONFIG_FILE, TOKENIZER_FILES
from wedlm.checkpoints.shards import INDEX_FILE, Shard, num_bytes_after, read_index, read_json, write_shard
from wedlm.checkpoints.tokenizer_files import TokenizerFiles, with_class
from wedlm.modeling_wedlm.configuration_wedlm import WeDLMConfig

SPARE_BYTES = 32 * 2**20  # of disk space, for config, tokenizer and code


class Plan(NamedTuple):
    """Everything that is going to be written."""

    config: WeDLMConfig | dict  # a dict is the config.json of a stock checkpoint
    shards: list[Shard]
    num_rows: dict[str, int]  # of the weights that gain or lose a row
    folder: Path  # the source
    changed: dict[str, dict | None]  # small files with their new content; None for one that is left out
    tokens: dict[str, int] | None  # ids that the changed tokenizer must give; None if it does not change
    notes: list[str]
    added: dict[str, torch.Tensor] = {}  # weights that the last file gains

    def added_to(self, shard: Shard) -> dict[str, torch.Tensor]:
        return self.added if shard is self.shards[-1] else {}

    def num_bytes(self) -> int:
        """The size of the checkpoint on disk, with some room for the small files."""
        weights = (num_bytes_after(shard, self.num_rows, self.added_to(shard)) for shard in self.shards)
        return sum(weights) + SPARE_BYTES


def write(plan: Plan, out: Path, overwrite: bool, fill: Callable[[Plan, Path], None] | None = None) -> None:
    """Writes all of a checkpoint to `out`, or nothing.

    Args:
        plan (`Plan`): The checkpoint.
        out (`Path`): The folder, which `check_out` has accepted.
        overwrite (`bool`): Whether a checkpoint that `out` holds is replaced.
        fill (`Callable`, *optional*): Writes the files into the new folder; by default `write_whole`.
    """
    try:
        if old := leftovers(out):
            plan.notes.append(f"A conversion that was killed, or is still running, left {', '.join(old)}.")
        check_space(out, plan.num_bytes())
        with complete_or_absent(out, overwrite) as folder:
            (fill or write_whole)(plan, folder)
    except OSError as error:
        raise CheckpointError(
            f"{out} could not be written ({error}) and is as it was; make room or give access there, or choose "
            "another place, and convert again."
        ) from error


def write_whole(plan: Plan, folder: Path) -> None:
    """Writes all files of a checkpoint into a folder that is there."""
    write_companions(plan, folder)
    if any((folder / name).exists() for name in TOKENIZER_FILES):
        keep_form(plan, folder)
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
    """Copies the files of `source` whose names match a pattern."""
    for path in (path for pattern in patterns for path in sorted(source.glob(pattern)) if path.is_file()):
        place = folder / path.relative_to(source)
        place.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, place)


def write_json(path: Path, content: dict) -> None:
    # In the form of transformers and tokenizers, so that MASK put in and taken out again leaves the same bytes.
    end = "" if path.name == "tokenizer.json" else "\n"
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + end, encoding="utf-8")


def load_tokenizer(folder: Path, source: Path) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder; `source` is the folder whose files its owner can correct."""
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # wrong files raise errors of many kinds
        raise CheckpointError(
            f"The tokenizer in {source} cannot be loaded ({one_line(error)}); correct its files."
        ) from error


def form_of(tokenizer: PreTrainedTokenizerBase) -> dict | None:
    """Everything that decides how a tokenizer splits and joins a text, but the ids and MASK."""
    if not tokenizer.is_fast:
        return None
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model = {name: value for name, value in content["model"].items() if name not in ("vocab", "merges")}
    added = {token["content"]: {**token, "id": None} for token in content["added_tokens"]}
    added.pop(tokenizer.mask_token, None)
    return {**content, "model": model, "added_tokens": added}


def keep_form(plan: Plan, folder: Path) -> None:
    """Makes AutoTokenizer load the tokenizer as in the source. It chooses the class by `model_type` too.

    A Mistral that names LlamaTokenizer gets TokenizersBackend, for example, which reads tokenizer.json as it is.
    """
    result = load_tokenizer(folder, plan.folder)
    if TokenizerFiles.read(plan.folder).has_code():  # the source cannot be loaded without it
        return
    source = load_tokenizer(plan.folder, plan.folder)
    if form_of(result) == form_of(source):
        return
    path, name = folder / "tokenizer_config.json", type(source).__name__
    write_json(path, with_class(read_json(path) if path.exists() else {}, name))
    if form_of(load_tokenizer(folder, plan.folder)) != form_of(source):
        raise CheckpointError(
            f"The tokenizer in {plan.folder} is a {name}, and beside another config.json it becomes another one; load "
            "it and save it with save_pretrained() first."
        )


def check_tokenizer(plan: Plan, folder: Path) -> None:
    """Compares the id of every token with the planned one, if the tokenizer has changed."""
    if plan.tokens is None:
        return
    tokenizer = load_tokenizer(folder, plan.folder)
    vocabulary = tokenizer.get_vocab()
    moved = [token for token, i in plan.tokens.items() if vocabulary.get(token) != i]
    takes_mask_out = isinstance(plan.config, dict)
    mask_token_id = None if takes_mask_out else plan.config.mask_token_id
    if not moved and tokenizer.mask_token_id == mask_token_id:
        return
    if takes_mask_out:
        change, remedy = "taken out", "set mask_row to null in config.json there, which keeps MASK"
    else:
        change, remedy = "put in", "load it and save it with save_pretrained() first"
    raise CheckpointError(
        f"With MASK {change}, the tokenizer in {plan.folder} gives other ids to {moved[:3] or 'MASK'}; {remedy}."
    )


def write_weights(plan: Plan, folder: Path) -> None:
    """Copies the weight files with their changes, a progress bar each, and writes the index that belongs to them."""
    for i, shard in enumerate(plan.shards, start=1):
        title = f"{shard.path.name} ({i}/{len(plan.shards)})"
        added = plan.added_to(shard)
        num_bytes = num_bytes_after(shard, plan.num_rows, added)
        with tqdm(total=num_bytes, unit="B", unit_scale=True, desc=title) as bar:
            write_shard(shard, folder / shard.path.name, plan.num_rows, added, bar.update)
    index = read_index(plan.folder)
    if index is not None:
        update_totals(index["metadata"], plan)
        index["weight_map"] |= dict.fromkeys(plan.added, plan.shards[-1].path.name)
        write_json(folder / INDEX_FILE, index)


def update_totals(metadata: dict, plan: Plan) -> None:
    """Corrects the sizes that an index states by the rows that are gained or lost, and by the weights added."""
    for shard in plan.shards:
        for name in plan.num_rows.keys() & shard.tensors.keys():
            tensor = shard.tensors[name]
            start, stop = tensor["data_offsets"]
            rows, width = tensor["shape"]
            new_rows = plan.num_rows[name] - rows
            for total, row_size in (("total_size", (stop - start) // rows), ("total_parameters", width)):
                if total in metadata:
                    metadata[total] += new_rows * row_size
    for value in plan.added.values():
        for total, size in (("total_size", value.nbytes), ("total_parameters", value.numel())):
            if total in metadata:
                metadata[total] += size

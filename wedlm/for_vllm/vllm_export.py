"""`wedlm export --vllm`: a WeDLM as a plain checkpoint for vLLM, and beside it the drafter that shares its weights."""

import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch.nn.functional import pad

from wedlm.checkpoints.convert import plan_of_stock, read_source
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.load import adapter_on_disk
from wedlm.checkpoints.new_folder import DRAFTER, DRAFTS_FILE, TARGET, check_apart, check_links, check_out
from wedlm.checkpoints.plan import Plan, write, write_files, write_json
from wedlm.checkpoints.resolve import (
    CONFIG_FILE,
    STOCK_FAMILIES,
    check_weights,
    checkpoint_folder,
    checkpoint_of,
    draft_adapter,
    read_config,
    require_tokenizer,
    wedlm_folder,
)
from wedlm.checkpoints.shards import EMBEDDING, INDEX_FILE, read_shard
from wedlm.checkpoints.tokenizer_files import TokenizerFiles
from wedlm.for_vllm.plugin import DRAFTERS, MASK_EMBEDDING, is_draft
from wedlm.hub_card.export import Exported
from wedlm.modeling_wedlm.model_type import MODEL_TYPE

PICKLED_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # of vLLM's attention on a CPU
SPECULATIVE = {
    "method": "draft_model",
    "model": DRAFTER,
    "num_speculative_tokens": 8,  # the last one is wasted where MASKs predict their own places
    "parallel_drafting": True,
}
README = """\
# {title} in vLLM

{folders}

In this folder, in an environment with vLLM and wedlm, serve it:

```bash
{command}
```

or use it in Python:

```python
from vllm import LLM, SamplingParams

llm = LLM({target!r}, speculative_config={speculative})
answers = llm.chat([[{{"role": "user", "content": "Hello!"}}]], SamplingParams(temperature=0, max_tokens=100))
print(answers[0].outputs[0].text)
```

docs/vllm.md in the wedlm repository says when the drafter makes vLLM faster, and what its limits are.
"""


class Widening(NamedTuple):
    """The change of a model's heads from one width to another with zeros, so that the logits stay the same.

    RoPE turns channel i of a head together with channel i + width/2. So the zeros stand behind both halves of a head,
    and another base of RoPE leaves the angles of the old channels as they were. Attention divides by the root of the
    width, so the queries grow by the root of the ratio of widths. Where a norm follows, it sees as many zeros as the
    scale makes up for, and the keys grow too, to be divided by their norm's weight.
    """

    old: int
    new: int
    has_norms: bool  # of queries and keys

    def config(self, fields: dict) -> dict:
        """Returns a stock config.json with the new width."""
        return {**fields, "head_dim": self.new, "rope_theta": fields["rope_theta"] ** (self.new / self.old)}

    def weight(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a weight, or a matrix of a draft adapter, of the model with the new width.

        One that is scaled is in float32. A checkpoint in bfloat16 that is loaded in float32 loses nothing so; loaded
        in bfloat16, as its config.json says, its logits differ by about 1e-4.
        """
        found = re.search(r"\.([qkvo])_(proj|norm)\.(weight|bias|down|up)$", name)
        if found is None:
            return tensor
        which, kind, part = found.groups()
        if (which == "o") != (part == "down") and not (which == "o" and part == "weight"):
            return tensor  # the side of a product that has no heads
        scale = (self.new / self.old) ** 0.5
        if kind == "norm":
            return self.widen(tensor, 0).float() / scale if which == "k" else self.widen(tensor, 0)
        widened = self.widen(tensor, 1 if which == "o" else 0)
        return widened.float() * scale if which == "q" or which == "k" and self.has_norms else widened

    def widen(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        halves = tensor.unflatten(dim, (-1, self.old // 2))
        zeros = [0, 0] * (halves.dim() - dim - 2) + [0, (self.new - self.old) // 2]
        return pad(halves, zeros).flatten(dim, dim + 1)


class Drafts(NamedTuple):
    """The parts of a drafter that its target lacks."""

    mask_token_id: int
    mask_shift: bool  # whether a MASK predicts the token behind it
    adapter: dict[str, Any] | None  # its rank and modules
    tensors: dict[str, torch.Tensor]  # the embedding of MASK, and the matrices of the adapter


def export_for_vllm(
    model: str, out: str | os.PathLike, target: str | None = None, *, overwrite: bool = False
) -> Exported:
    """Writes a WeDLM for vLLM: OUT/target, a plain checkpoint, OUT/drafter, which shares its weights, and a README.md.

        export_for_vllm("tencent/WeDLM-8B-Instruct", "wedlm-8b-vllm")

    Args:
        model (`str`):
            The checkpoint or draft adapter: a folder, or a name on the Hub.
        out (`str` or `os.PathLike`):
            The folder.
        target (`str`, *optional*):
            Another model that the checkpoint drafts for: a folder, or a name on the Hub. OUT has no target then.
        overwrite (`bool`, *optional*, defaults to `False`):
            Replace an export that `out` holds.
    """
    out = check_out(out, overwrite)
    wedlm_folder(model, with_weights=False)
    name, adapter = checkpoint_of(model), draft_adapter(model)
    if adapter is not None:
        check_apart(out, adapter)
        check_links(adapter)
    read = read_source(name, out, wanted=(MODEL_TYPE,))
    read.config.require_mask_token_id()
    drafts = read_drafts(read, adapter)
    plan = plan_of_stock(read)
    check_heads(name, plan.config)
    if target is not None:
        check_target(target, out, model, read, drafts, plan)
    wider = widening(plan.config)
    if wider is not None:
        plan = replace(plan, config=wider.config(plan.config))
    plan.notes.extend(notes_on_heads(plan.config, wider))
    text = readme(Path(model).resolve().name, Path(name).resolve().name, target, plan.config["model_type"])
    write(plan, out, overwrite, partial(fill, text=text, own_target=target is None, drafts=drafts, wider=wider))
    return Exported(out, None, plan.notes)


def read_drafts(read: Plan, adapter: Path | None) -> Drafts:
    """Reads the embedding of MASK, and the draft adapter from its own folder or from the checkpoint with it."""
    config = read.config
    found, tensors = (config.drafts, {}) if adapter is None else adapter_on_disk(adapter, read.model, read.shards)
    mask_token_id, shift = config.mask_token_id, config.mask_shift
    if found is not None:
        shift |= found.pop("mask_shift", False)
    if adapter is not None:
        return Drafts(mask_token_id, shift, found, tensors)
    for shard in read.shards:
        with safe_open(shard.path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in shard.tensors if is_draft(name)}
            if EMBEDDING in shard.tensors:
                mask_row = file.get_slice(EMBEDDING)[mask_token_id]
    return Drafts(mask_token_id, shift, found, {MASK_EMBEDDING: mask_row, **tensors})


def check_target(target: str, out: Path, model: str, read: Plan, drafts: Drafts, plan: Plan) -> None:
    """Refuses a target whose tokens are not those of the drafter."""
    folder = checkpoint_folder(target, with_weights=False)
    check_apart(out, folder)
    fields = read_config(target, folder)
    require_tokenizer(target, folder)
    if fields.get("model_type") == MODEL_TYPE:
        raise CheckpointError(f"--target {target} is a WeDLM, which vLLM does not load; give a plain model.")
    if Path(target).is_dir() and not any((folder / file).exists() for file in PICKLED_FILES):
        check_weights(target, folder)
    rows, own_rows = fields.get("vocab_size"), plan.config["vocab_size"]
    if rows is None:
        raise CheckpointError(
            f"--target {target} has no vocab_size in config.json, so it is not a plain text model; choose one that is."
        )
    if rows != own_rows:
        raise CheckpointError(
            f"--target {target} has vocab_size={rows} and {model} has {own_rows}, which vLLM refuses; choose two with "
            "the same."
        )
    tokens, own_tokens = (set(TokenizerFiles.read(each).token_ids().items()) for each in (folder, read.folder))
    mask = {(token, i) for token, i in own_tokens if i == drafts.mask_token_id}
    if different := sorted({token for token, _ in (tokens ^ own_tokens) - mask}):
        raise CheckpointError(
            f"--target {target} has another tokenizer than {model} (such as for {different[:3]}); choose two with the "
            "same."
        )


def widening(fields: dict) -> Widening | None:
    """Returns the change that the heads of a stock config.json need for vLLM's attention on a CPU.

    None means that they need none, or that the change would alter the logits.
    """
    old = head_dim_of(fields)
    new = next((width for width in WIDTHS if width >= old), None)
    can_change = fields["model_type"] != "qwen2" and fields["rope_scaling"] is None and old % 2 == 0
    return Widening(old, new, fields["model_type"] == "qwen3") if can_change and new not in (None, old) else None


def head_dim_of(fields: dict) -> int:
    return fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]


def check_heads(name: str, fields: dict) -> None:
    """Refuses a Qwen2 whose head_dim vLLM would compute otherwise."""
    width, own_width = fields["hidden_size"] // fields["num_attention_heads"], head_dim_of(fields)
    if fields["model_type"] == "qwen2" and width != own_width:
        raise CheckpointError(
            f"{name} is a Qwen2 with head_dim={own_width}, and vLLM's Qwen2 always has "
            f"hidden_size / num_attention_heads, here {width}; use `wedlm serve`."
        )


def notes_on_heads(fields: dict, wider: Widening | None) -> list[str]:
    if wider is not None:
        return [
            f"The heads were {wider.old} wide, which vLLM's attention on a CPU does not have; zeros make them "
            f"{wider.new} wide, and the logits stay the same up to rounding."
        ]
    width = head_dim_of(fields)
    if width not in WIDTHS:
        return [f"vLLM's attention on a CPU has no heads that are {width} wide; serve it on a GPU."]
    return []


def fill(plan: Plan, folder: Path, text: str, own_target: bool, drafts: Drafts, wider: Widening | None) -> None:
    """Writes all files of an export into a folder; without `own_target` the plain checkpoint is only the drafter's."""
    drafter, whole = folder / DRAFTER, folder / (TARGET if own_target else DRAFTER)
    whole.mkdir()
    write_files(plan, whole)
    if wider is not None or any(is_draft(name) for shard in plan.shards for name in shard.tensors):
        rewrite_weights(whole, wider)
    if own_target:
        drafter.mkdir()
        for path in whole.glob("*.safetensors"):
            try:
                os.link(path, drafter / path.name)
            except OSError:  # The disk has no hard links.
                shutil.copyfile(path, drafter / path.name)
    tensors = {name: wider.weight(name, each) if wider else each for name, each in drafts.tensors.items()}
    (drafter / DRAFTS_FILE).write_bytes(save(tensors, {"format": "pt"}))
    write_index(drafter)
    # vLLM reads mask_token_id too, but transformers warns of one outside the vocabulary.
    own = {"architectures": [DRAFTERS[plan.config["model_type"]]], "pard_token": drafts.mask_token_id}
    own |= {"drafts": drafts.adapter, "mask_shift": drafts.mask_shift}
    write_json(drafter / CONFIG_FILE, {**plan.config, **own})
    (folder / "README.md").write_text(text, encoding="utf-8")


def rewrite_weights(folder: Path, wider: Widening | None) -> None:
    """Leaves draft adapters out of the weight files of a folder, and makes heads wider."""
    for path in sorted(folder.glob("*.safetensors")):
        metadata, new = read_shard(path).metadata, path.with_suffix(".new")
        kept = {name: tensor for name, tensor in load_file(path).items() if not is_draft(name)}
        changed = {name: wider.weight(name, each) if wider else each for name, each in kept.items()}
        new.write_bytes(save(changed, metadata))  # save_file would make a file that its owner alone can read
        new.replace(path)
    write_index(folder)


def write_index(folder: Path) -> None:
    """Writes the index of the weight files of a folder, if there are several or if they had one."""
    shards = [read_shard(path) for path in sorted(folder.glob("*.safetensors"))]
    if len(shards) > 1 or (folder / INDEX_FILE).exists():
        size = sum(shard.num_bytes() for shard in shards)
        weight_map = {name: shard.path.name for shard in shards for name in shard.tensors}
        write_json(folder / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": weight_map})


def readme(title: str, base: str, target: str | None, model_type: str) -> str:
    """The README.md of an export. The drafter is `title`, a WeDLM or a draft adapter of the WeDLM `base`."""
    if target is None:
        adapter = "" if title == base else f" and the draft adapter {title}"
        plain = f"`{TARGET}` is {base} as a plain {STOCK_FAMILIES[model_type]}"
        folders, target = f"{plain}. `{DRAFTER}` is its draft model, with the same weights{adapter}.", TARGET
    else:
        target = str(Path(target).resolve()) if Path(target).is_dir() else target
        folders = f"`{DRAFTER}` is {title} as the draft model of {target}."
    command = shlex.join(["vllm", "serve", target, "--speculative-config", json.dumps(SPECULATIVE)])
    return README.format(title=title, folders=folders, target=target, command=command, speculative=SPECULATIVE)

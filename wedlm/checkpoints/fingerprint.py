"""The fingerprint by which a draft adapter knows its base, the model that it was trained on."""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import NamedTuple

import torch
from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel

from wedlm.checkpoints.shards import EMBEDDING, HEAD, Shard
from wedlm.fused.packed import PackedWeight

# The weights of the model itself, also where PEFT has put layers of its own around them.
OWN_WEIGHT = re.compile(
    r"(model\.embed_tokens|model\.norm|lm_head|model\.layers\.\d+(?:\.\w+){1,2})(?:\.base_layer)*\.(weight|bias)"
)
DOWN = re.compile(r"model\.layers\.(\d+)\.mlp\.down_proj\.weight")
ROWS = 4  # of each `DOWN`


class Fingerprint(NamedTuple):
    """Two hashes of a model, in the order of `FIELDS`; None where it cannot be known."""

    signs: str | None  # of the signs of a few weights, which are the same in every dtype
    weights: str | None  # of all weights in bfloat16, to which those of every dtype but float16 round alike


FIELDS = ("base_fingerprint", "base_weights")  # of adapter_config.json; adapters before 0.4.0 have only the first


def fingerprint(model: PreTrainedModel) -> Fingerprint:
    """Returns the fingerprint of a `WeDLMForCausalLM` without its adapters."""
    if any(isinstance(module, PackedWeight) for module in model.modules()):
        return Fingerprint(None, None)  # a GGUF file of the base has other values, and its drafts are as good
    weights = {
        f"{match[1]}.{match[2]}": weight.detach()
        for name, weight in model.named_parameters()
        if (match := OWN_WEIGHT.fullmatch(name))
    }
    # Quantized weights have other values, and those of an offloaded or a sharded model are not in memory.
    if any(weight.is_meta or not weight.is_floating_point() or not weight.numel() for weight in weights.values()):
        return Fingerprint(None, None)
    found = fingerprint_of(weights, weights.__getitem__, model.config)
    # The rounding to float16 cannot be undone.
    return found._replace(weights=None) if any(each.dtype == torch.float16 for each in weights.values()) else found


def fingerprint_of_files(shards: list[Shard], config: PreTrainedConfig) -> Fingerprint:
    """Returns the fingerprint of the checkpoint in these files; `config` is its WeDLMConfig, also of a stock one."""
    paths = {name: shard.path for shard in shards for name in shard.tensors}

    def read(name: str) -> torch.Tensor:
        with safe_open(paths[name], framework="pt") as file:
            return file.get_tensor(name)

    return fingerprint_of(paths, read, config)


def fingerprint_of(names: Iterable[str], read: Callable[[str], torch.Tensor], config: PreTrainedConfig) -> Fingerprint:
    """Returns the fingerprint of the weights that have these names; further weights do not count."""
    names = sorted(name for name in names if OWN_WEIGHT.fullmatch(name))
    if config.tie_word_embeddings and HEAD in names:
        names.remove(HEAD)
    # Without the row that a conversion has added, a converted model is the model that it was made from.
    num_rows = config.mask_token_id if getattr(config, "mask_row", None) == "added" else None

    def hashes(name: str) -> tuple[bytes, torch.Tensor | None]:
        weight = read(name)
        if name in (EMBEDDING, HEAD):
            weight = weight[:num_rows]
        values = weight.to("cpu", torch.bfloat16).contiguous()
        digest = sha256(f"{name} {list(values.shape)}".encode())
        digest.update(values.view(torch.uint8).numpy())
        return digest.digest(), weight[:ROWS].cpu().signbit().flatten() if DOWN.fullmatch(name) else None

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = dict(zip(names, pool.map(hashes, names), strict=True))
    downs = sorted((name for name in names if DOWN.fullmatch(name)), key=lambda name: int(DOWN.fullmatch(name)[1]))
    signs = bytes(torch.cat([found[name][1] for name in downs]).tolist()) if downs else b""
    return Fingerprint(
        sha256(signs).hexdigest()[:16], sha256(b"".join(digest for digest, _ in found.values())).hexdigest()
    )


def check_base(present: Fingerprint, recorded: dict[str, str | None]) -> None:
    for name, value in zip(FIELDS, present, strict=True):
        if None not in (value, recorded.get(name)) and recorded[name] != value:
            raise ValueError(
                f"{name}={recorded[name]!r} of the draft adapter is not that of this model, {value!r}, so the adapter "
                "was trained on other weights; load it into its own base, or train one for this model."
            )

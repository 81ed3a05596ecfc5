"""The MASK token in the files of a tokenizer, put in and taken out as data."""

import json
from itertools import count
from pathlib import Path

from tokenizers import Tokenizer

from wedlm.modeling_wedlm.shards import read_json

# What holds tokens, or says what they are for. merges.txt and the chat templates need no look.
READ_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")

Files = dict[str, dict]  # the content of each file that is there


def read_tokenizer(folder: Path) -> Files:
    return {name: read_json(folder / name) for name in READ_FILES if (folder / name).exists()}


def has_tokens(files: Files) -> bool:
    return "tokenizer.json" in files or "vocab.json" in files


def token_ids(files: Files) -> dict[str, int]:
    """Every token that a file speaks of, and its id."""
    tokenizer = files.get("tokenizer.json", {})
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    return {
        **files.get("vocab.json", {}),
        **(vocabulary if isinstance(vocabulary, dict) else {token: i for i, (token, _) in enumerate(vocabulary)}),
        **files.get("added_tokens.json", {}),
        **{token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])},
        **{token["content"]: int(i) for i, token in decoder_of(files).items()},
    }


def decoder_of(files: Files) -> dict[str, dict]:
    return files.get("tokenizer_config.json", {}).get("added_tokens_decoder") or {}


def mask_token_of(files: Files) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = files.get(name, {}).get("mask_token")
        if token is not None:
            return token["content"] if isinstance(token, dict) else token
    return None


def free_name(files: Files) -> str:
    names = ("<|mask|>", *(f"<|mask_{i}|>" for i in range(2, 100)))
    return next(name for name in names if name not in token_ids(files))


def unused_row(used: set[int], vocab_size: int) -> int | None:
    """The first row behind all that are used, or else the first gap between them."""
    behind = max(used, default=-1) + 1
    if behind < vocab_size:
        return behind
    return next((i for i in count() if i not in used), None) if len(used) < vocab_size else None


def with_mask(files: Files, token: str, token_id: int) -> Files:
    """The files that change when `token` becomes the mask_token, with their new content."""
    description = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    config = {**files.get("tokenizer_config.json", {}), "mask_token": token}
    if "added_tokens_decoder" in config or "tokenizer.json" not in files:
        decoder = {**decoder_of(files), str(token_id): {"content": token, **description}}
        config["added_tokens_decoder"] = dict(sorted(decoder.items(), key=lambda item: int(item[0])))
    changed = {"tokenizer_config.json": config}
    if "special_tokens_map.json" in files:
        changed["special_tokens_map.json"] = {**files["special_tokens_map.json"], "mask_token": token}
    if "added_tokens.json" in files:
        changed["added_tokens.json"] = {**files["added_tokens.json"], token: token_id}
    if "tokenizer.json" in files:
        tokenizer = files["tokenizer.json"]
        entry = {"id": token_id, "content": token, **description}
        added = sorted([*tokenizer.get("added_tokens", []), entry], key=lambda added: added["id"])
        changed["tokenizer.json"] = {**tokenizer, "added_tokens": added}
        if Tokenizer.from_str(json.dumps(changed["tokenizer.json"])).token_to_id(token) != token_id:
            # The library numbers added tokens itself, without gaps; what stands in the vocabulary keeps its id.
            model = {**tokenizer["model"], "vocab": {**tokenizer["model"]["vocab"], token: token_id}}
            changed["tokenizer.json"]["model"] = model
    return changed


def without_mask(files: Files, token_id: int) -> Files:
    """The files that change when the token `token_id` is taken out, with their new content."""
    token = mask_token_of(files)

    def without(mapping: dict, name: str) -> dict:
        return {key: value for key, value in mapping.items() if key != name}

    changed = {}
    for name, content in files.items():
        if name in ("tokenizer_config.json", "special_tokens_map.json"):
            new = without(content, "mask_token")
            if "added_tokens_decoder" in new:
                new["added_tokens_decoder"] = without(new["added_tokens_decoder"], str(token_id))
        elif name == "tokenizer.json":
            new = {
                **content,
                "added_tokens": [added for added in content.get("added_tokens", []) if added["id"] != token_id],
            }
            if isinstance(content["model"].get("vocab"), dict):
                new["model"] = {**content["model"], "vocab": without(content["model"]["vocab"], token)}
        else:
            new = without(content, token)
        if new != content:
            changed[name] = new
    return changed

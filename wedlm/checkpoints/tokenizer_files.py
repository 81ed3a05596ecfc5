"""The files of a tokenizer as data, so that a MASK token can be put in and taken out."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from tokenizers import Tokenizer

from wedlm.checkpoints.errors import CheckpointError, one_line
from wedlm.checkpoints.shards import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# The files that hold tokens or give them a role; merges.txt and the chat templates do neither.
READ_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "added_tokens.json", "special_tokens_map.json")
BINARY_FILE = "tokenizer.model"  # of SentencePiece or tiktoken
STOCK_CLASS = "stock_tokenizer_class"  # in tokenizer_config.json: the tokenizer_class that `with_class` replaced


def content_of(token: str | dict | None) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def without(mapping: dict, *names: str) -> dict:
    return {key: value for key, value in mapping.items() if key not in names}


class TokenizerFiles(NamedTuple):
    contents: dict[str, dict]  # by name of the file

    @classmethod
    def read(cls, folder: Path) -> Self:
        files = cls({name: read_json(folder / name) for name in READ_FILES if (folder / name).exists()})
        if not files.has_tokens() and (folder / BINARY_FILE).exists():
            raise CheckpointError(
                f"{folder} has a {BINARY_FILE} and no tokenizer.json; load the tokenizer with AutoTokenizer and save "
                "it there with save_pretrained(), which writes one."
            )
        try:
            files.token_ids(), files.mask_token()  # both raise on unusual content
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"The tokenizer files in {folder} have an unknown form ({type(error).__name__}: {error}); correct "
                "them, or save the tokenizer with save_pretrained() again."
            ) from error
        return files

    def without_code(self, source: object) -> tuple[Self, dict[str, dict], list[str]]:
        """Takes out code besides transformers'; returns the tokenizer, its changed files, and notes for its user."""
        if not self.has_code():
            return self, {}, []
        config = without(self.file("tokenizer_config.json"), "auto_map")
        if self.has_foreign_class():
            if "tokenizer.json" not in self.contents:
                raise CheckpointError(
                    f"The tokenizer of {source} has the class {config['tokenizer_class']!r}, which transformers "
                    "lacks, and no tokenizer.json; save it as a tokenizer of transformers first."
                )
            config["tokenizer_class"] = "PreTrainedTokenizerFast"
        note = (
            f"The tokenizer of {source} has code of its own, which is left out; compare the tokens of a few texts "
            "with those of the source."
        )
        changed = {"tokenizer_config.json": config}
        return TokenizerFiles({**self.contents, **changed}), changed, [note]

    def has_code(self) -> bool:
        """Whether the tokenizer names code besides transformers'."""
        return "auto_map" in self.file("tokenizer_config.json") or self.has_foreign_class()

    def has_foreign_class(self) -> bool:
        name = self.file("tokenizer_config.json").get("tokenizer_class")
        return isinstance(name, str) and not is_tokenizer_class(name)

    def file(self, name: str) -> dict:
        return self.contents.get(name, {})

    def has_tokens(self) -> bool:
        return "tokenizer.json" in self.contents or "vocab.json" in self.contents

    def token_ids(self) -> dict[str, int]:
        """The id of every token that one of the files names."""
        tokenizer = self.file("tokenizer.json")
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        if isinstance(vocabulary, list):  # of a Unigram, whose tokens have scores
            vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
        decoder = self.file("tokenizer_config.json").get("added_tokens_decoder") or {}
        token_ids = {
            **self.file("vocab.json"),
            **vocabulary,
            **self.file("added_tokens.json"),
            **{token["content"]: token["id"] for token in tokenizer.get("added_tokens", [])},
            **{token["content"]: int(i) for i, token in decoder.items()},
        }
        if not all(type(token) is str and type(i) is int for token, i in token_ids.items()):
            raise ValueError("a token is not text, or its id no whole number")
        return token_ids

    def check_rows(self, num_rows: int, source: object) -> None:
        if beyond := sorted((i, token) for token, i in self.token_ids().items() if not 0 <= i < num_rows):
            raise CheckpointError(
                f"The tokenizer of {source} has the token {beyond[-1][1]!r} with the id {beyond[-1][0]}, and its "
                f"model has {num_rows} rows; resize the embeddings, or use the tokenizer that belongs to the model."
            )

    def mask_token(self) -> str | None:
        tokens = (self.file(name).get("mask_token") for name in ("tokenizer_config.json", "special_tokens_map.json"))
        token = next((content_of(token) for token in tokens if token is not None), None)
        if not isinstance(token, str | None):
            raise ValueError(f"mask_token is {token!r}")
        return token

    def with_mask(self, token: str, token_id: int) -> dict[str, dict]:
        """The files that change when a new token becomes the mask_token, with their new content."""
        description = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        config = {**self.file("tokenizer_config.json"), "mask_token": token}
        if "added_tokens_decoder" in config or "tokenizer.json" not in self.contents:
            decoder = {**(config.get("added_tokens_decoder") or {}), str(token_id): {"content": token, **description}}
            config["added_tokens_decoder"] = dict(sorted(decoder.items(), key=lambda item: int(item[0])))
        changed = {"tokenizer_config.json": config}
        if "special_tokens_map.json" in self.contents:
            changed["special_tokens_map.json"] = {**self.file("special_tokens_map.json"), "mask_token": token}
        if "added_tokens.json" in self.contents:
            changed["added_tokens.json"] = {**self.file("added_tokens.json"), token: token_id}
        if "tokenizer.json" in self.contents:
            tokenizer = self.file("tokenizer.json")
            entry = {"id": token_id, "content": token, **description}
            added = sorted([*tokenizer.get("added_tokens", []), entry], key=lambda added: added["id"])
            changed["tokenizer.json"] = {**tokenizer, "added_tokens": added}
            has_gap = token_id_of(token, changed["tokenizer.json"]) != token_id
            if has_gap and isinstance(tokenizer["model"]["vocab"], dict):
                # The library numbers added tokens without gaps; tokens of the vocabulary keep their ids.
                vocabulary = {**tokenizer["model"]["vocab"], **{token["content"]: token["id"] for token in added}}
                changed["tokenizer.json"]["model"] = {**tokenizer["model"], "vocab": vocabulary}
        return changed

    def without_mask(self, token_id: int) -> dict[str, dict]:
        """The files that change when the token with this id is taken out, with their new content."""
        token = next((token for token, i in self.token_ids().items() if i == token_id), None)
        changed = {}
        for name, content in self.contents.items():
            new = dict(content)
            if name in ("tokenizer_config.json", "special_tokens_map.json"):
                if content_of(content.get("mask_token")) == token:
                    new = without(new, "mask_token")
                if new.get("added_tokens_decoder"):
                    new["added_tokens_decoder"] = without(new["added_tokens_decoder"], str(token_id))
            elif name == "tokenizer.json":
                new["added_tokens"] = [added for added in content.get("added_tokens", []) if added["id"] != token_id]
                if isinstance(content.get("model", {}).get("vocab"), dict):
                    new["model"] = {**content["model"], "vocab": without(content["model"]["vocab"], token)}
            else:
                new = without(new, token)
            if new != content:
                changed[name] = new
        return changed


def load_tokenizer(folder: Path, source: object) -> "PreTrainedTokenizerBase":
    """Loads the tokenizer of a folder; `source` is what its owner can correct."""
    from transformers import AutoTokenizer  # takes a second, and reading the files does not need it

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer("a")  # some wrong values are noticed only now
        return tokenizer
    except Exception as error:  # wrong files raise errors of many kinds
        raise CheckpointError(
            f"The tokenizer in {source} cannot be loaded ({one_line(error)}); correct its files, or copy or download "
            "it again."
        ) from error


def is_tokenizer_class(name: str) -> bool:
    from transformers import PreTrainedTokenizerBase
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    found = tokenizer_class_from_name(name)
    return isinstance(found, type) and issubclass(found, PreTrainedTokenizerBase)


def token_id_of(token: str, content: dict) -> int | None:
    """The id that the library gives to a token of a tokenizer.json."""
    try:
        return Tokenizer.from_str(json.dumps(content)).token_to_id(token)
    except Exception as error:  # the library raises no other kind
        raise CheckpointError(
            f"tokenizer.json is not understood ({error}); correct it, or save the tokenizer with save_pretrained()."
        ) from error


def with_class(config: dict, name: str) -> dict:
    """The content of tokenizer_config.json with another tokenizer_class, and the present one beside it."""
    return {**config, "tokenizer_class": name, STOCK_CLASS: config.get("tokenizer_class")}


def for_stock(contents: dict[str, dict]) -> dict[str, dict]:
    """The files that change for a stock checkpoint, whose tokenizer_config.json transformers 4 can read too."""
    config = contents.get("tokenizer_config.json", {})
    new = dict(config)
    if STOCK_CLASS in config:
        new["tokenizer_class"] = new.pop(STOCK_CLASS)
        if new["tokenizer_class"] is None:
            del new["tokenizer_class"]
    if new.get("tokenizer_class") == "TokenizersBackend":
        new["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name in transformers 4
    if isinstance(config.get("extra_special_tokens"), list) and "additional_special_tokens" not in config:
        names = {"extra_special_tokens": "additional_special_tokens"}  # the same
        new = {names.get(name, name): value for name, value in new.items()}
    return {"tokenizer_config.json": new} if new != config else {}

"""The files of a tokenizer with MASK put in and taken out."""

import json

import pytest
from stock_checkpoints import OLD_NAME, TOKENS, assert_refused, edit
from transformers import (
    AutoTokenizer,
)

from wedlm import convert_to_autoregressive, convert_to_wedlm


def test_tokenizer_files_of_older_versions(source, tmp_path):
    """transformers 4 wrote every added token into three more files."""
    tokens = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
    description = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    decoder = {str(i): {"content": token, **description} for token, i in tokens.items()}
    edit(source / "tokenizer_config.json", added_tokens_decoder=decoder)
    (source / "added_tokens.json").write_text(json.dumps(tokens))
    (source / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))
    convert_to_wedlm(source, tmp_path / "wedlm")
    read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "wedlm").glob("*.json")}
    assert read["tokenizer_config.json"]["added_tokens_decoder"]["259"] == {"content": "<|mask|>", **description}
    assert read["added_tokens.json"] == tokens | {"<|mask|>": 259}
    assert read["special_tokens_map.json"]["mask_token"] == "<|mask|>"
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"):
        expected = json.loads((source / name).read_bytes().replace(*OLD_NAME))
        assert json.loads((tmp_path / "back" / name).read_text()) == expected, name


def test_a_tokenizer_of_vocab_and_merges_only(source, tmp_path):
    content = json.loads((source / "tokenizer.json").read_text())
    (source / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    (source / "merges.txt").write_text("#version: 0.2\n")
    decoder = {str(token.pop("id")): token for token in content["added_tokens"]}
    edit(source / "tokenizer_config.json", added_tokens_decoder=decoder)
    (source / "tokenizer.json").unlink()
    before = AutoTokenizer.from_pretrained(source).get_vocab()
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert AutoTokenizer.from_pretrained(tmp_path / "wedlm").get_vocab() == before | {"<|mask|>": TOKENS}
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert AutoTokenizer.from_pretrained(tmp_path / "back").get_vocab() == before


# --- Refusals ---


REFUSED = {
    "a tokenizer of another kind": (
        lambda folder: edit(folder / "tokenizer.json", model={"type": "Unigram", "vocab": ["a", "b"]}),
        "The tokenizer files in .* have an unknown form .*; correct them",
    ),
    "added tokens without ids": (
        lambda folder: edit(folder / "tokenizer.json", added_tokens=[{"content": "<|endoftext|>"}]),
        "have an unknown form .KeyError: 'id'",
    ),
    "a mask_token that is a list": (
        lambda folder: edit(folder / "tokenizer_config.json", mask_token=["a"]),
        "have an unknown form .*mask_token is",
    ),
    "ids that are texts": (
        lambda folder: (folder / "added_tokens.json").write_text('{"a": "1"}'),
        "have an unknown form .*its id no whole number",
    ),
    "a tokenizer that the library does not know": (
        lambda folder: edit(folder / "tokenizer.json", pre_tokenizer={"type": "Nothing"}),
        "tokenizer.json is not understood .*; correct it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_sentence_and_nothing_is_written(source, tmp_path, name):
    assert_refused(source, tmp_path, *REFUSED[name])

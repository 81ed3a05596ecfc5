"""The row and the token that MASK gets."""

import json
import shutil

import pytest
import torch
from stock_checkpoints import END, INDEX, OLD_NAME, SAY, TOKENS, assert_refused, edit, files_of, save_stock, weights_of
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
)

from wedlm import convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError


def test_the_added_row_is_the_mean_of_the_others(source, tmp_path):
    result = convert_to_wedlm(source, tmp_path / "wedlm")
    old, new = weights_of(source), weights_of(tmp_path / "wedlm")
    assert old.keys() == new.keys()
    for name in old:
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            assert torch.equal(new[name][:-1], old[name])
            torch.testing.assert_close(new[name][-1], old[name].mean(dim=0), rtol=0, atol=1e-7)
        else:
            assert torch.equal(new[name], old[name])
    assert result.mask_token_id == len(old["lm_head.weight"])
    index = json.loads((tmp_path / "wedlm" / INDEX).read_text())
    assert index["metadata"] == {
        "total_parameters": sum(tensor.numel() for tensor in new.values()),
        "total_size": sum(tensor.nbytes for tensor in new.values()),
    }


def test_a_tied_head_that_is_in_the_file_gets_the_row_too(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    save_stock(source, "qwen2")
    edit(source / "config.json", tie_word_embeddings=True)
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert weights_of(tmp_path / "wedlm")["lm_head.weight"].shape[0] == TOKENS + 1
    AutoModelForCausalLM.from_pretrained(tmp_path / "wedlm")
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    old, new = files_of(source), files_of(tmp_path / "back")
    assert {name for name in old if old[name] != new[name]} == {"config.json", "tokenizer_config.json"}


def test_a_tokenizers_own_mask_token_is_kept(source, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.mask_token = "<|im_end|>"
    tokenizer.save_pretrained(source)
    result = convert_to_wedlm(source, tmp_path / "wedlm")
    assert result.mask_token_id == 258 and "'<|im_end|>' (id 258); it is kept" in result.notes[0]
    config = json.loads((tmp_path / "wedlm" / "config.json").read_text())
    assert config["vocab_size"] == TOKENS and config.get("mask_row") is None
    assert convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back").mask_token_id == 258
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes().replace(*OLD_NAME)


def test_a_name_that_is_taken_is_not_used(source, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(["<|mask|>"])
    tokenizer.save_pretrained(source)
    edit(source / "config.json", vocab_size=TOKENS)
    with pytest.raises(CheckpointError, match="has the token '<.mask.>' with the id 259, and its model has 259 rows"):
        convert_to_wedlm(source, tmp_path / "wedlm")
    shutil.rmtree(source)
    source.mkdir()
    save_stock(source, rows=300, tokenizer=False)
    tokenizer.save_pretrained(source)
    assert convert_to_wedlm(source, tmp_path / "wedlm").mask_token_id == 260
    assert AutoTokenizer.from_pretrained(tmp_path / "wedlm").mask_token == "<|mask_2|>"


@pytest.mark.few(2)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("name", ["eos_token_id", "pad_token_id", "bos_token_id"])
def test_ids_that_only_a_config_names_are_used(tmp_path, file, name):
    (tmp_path / "source").mkdir()
    save_stock(tmp_path / "source", rows=300)
    edit(tmp_path / "source" / file, **{name: [END, 270] if name == "eos_token_id" else 270})
    assert convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm").mask_token_id == 271
    edit(tmp_path / "source" / "generation_config.json", **{name: "x"})
    with pytest.raises(CheckpointError, match=f"{name} of .* is 'x', which is no token id; correct"):
        convert_to_wedlm(tmp_path / "source", tmp_path / "other")


def test_a_gap_between_tokens_is_used_when_none_is_behind_them(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    save_stock(source)
    content = json.loads((source / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] != SAY]
    content["model"]["vocab"] |= {"<|endoftext|>": 256, "<|im_end|>": 258}  # otherwise tokenizers numbers them anew
    (source / "tokenizer.json").write_text(json.dumps(content, indent=2, ensure_ascii=False))
    edit(source / "tokenizer_config.json", ["additional_special_tokens", "extra_special_tokens"])
    edit(source / "config.json", eos_token_id=END)
    edit(source / "generation_config.json", eos_token_id=END)
    before = AutoTokenizer.from_pretrained(source).get_vocab()
    assert SAY not in before.values() and max(before.values()) == 258
    assert convert_to_wedlm(source, tmp_path / "wedlm").mask_token_id == SAY
    assert AutoTokenizer.from_pretrained(tmp_path / "wedlm").get_vocab() == before | {"<|mask|>": SAY}
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert AutoTokenizer.from_pretrained(tmp_path / "back").get_vocab() == before
    old, new = files_of(source), files_of(tmp_path / "back")
    assert new["tokenizer.json"] == old["tokenizer.json"]


def test_no_tokenizer(tmp_path):
    (tmp_path / "source").mkdir()
    save_stock(tmp_path / "source", rows=300, tokenizer=False)
    result = convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm")
    assert (
        result.mask_token_id == 300
        and "has no tokenizer, and MASK gets row 300; if a tokenizer is to name MASK, put it there" in result.notes[0]
    )
    assert not list((tmp_path / "wedlm").glob("tokenizer*"))
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert {**weights_of(tmp_path / "back")}.keys() == weights_of(tmp_path / "source").keys()
    assert weights_of(tmp_path / "back")["lm_head.weight"].shape[0] == 300


def test_a_tokenizer_that_went_on_behind_mask_keeps_its_ids(tmp_path):
    (tmp_path / "source").mkdir()
    save_stock(tmp_path / "source", rows=300)
    convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "wedlm")
    tokenizer.add_tokens(["<|mine|>"])
    tokenizer.save_pretrained(tmp_path / "wedlm")
    with pytest.raises(CheckpointError, match=r"gives other ids to \['<\|mine\|>'\]; set mask_row to null"):
        convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    edit(tmp_path / "wedlm" / "config.json", mask_row=None)
    assert "stays" in convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back").notes[0]


def test_rows_added_behind_mask_are_not_dropped(source, tmp_path):
    convert_to_wedlm(source, tmp_path / "wedlm")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "wedlm")
    model.resize_token_embeddings(270)
    model.save_pretrained(tmp_path / "resized")
    with pytest.raises(
        CheckpointError, match="mask_token_id=259 is not the last of the 270 rows .*set mask_row to null"
    ):
        convert_to_autoregressive(tmp_path / "resized", tmp_path / "back")


# --- Refusals ---


REFUSED = {
    "a mask_token that pads": (
        lambda folder: [
            edit(folder / "config.json", pad_token_id=258),
            edit(folder / "tokenizer_config.json", mask_token="<|im_end|>"),
        ],
        "also ends or pads the text",
    ),
    "a mask_token that ends the text": (
        lambda folder: edit(folder / "tokenizer_config.json", mask_token="<|im_start|>"),
        "The mask_token '<.im_start.>' of .* also ends or pads the text; correct or remove",
    ),
    "a mask_token outside": (
        lambda folder: edit(folder / "tokenizer_config.json", mask_token="<none>"),
        "mask_token '<none>' of .* has the id None, which is none of the 259 rows; correct",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_sentence_and_nothing_is_written(source, tmp_path, name):
    assert_refused(source, tmp_path, *REFUSED[name])

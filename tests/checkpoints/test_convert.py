"""Conversions there and back: weights, config, code and tokenizer."""

import json
import shutil

import pytest
import torch
from helpers import CHECKPOINTS
from stock_checkpoints import END, OLD_NAME, SAY, TOKENS, bits, edit, files_of, save_stock, weights_of
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM, Qwen3ForCausalLM

from wedlm import WeDLMForCausalLM, convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints.demo_folder import DEMO_FOLDER
from wedlm.generation.model_kind import is_trained_in_masks
from wedlm.generation.parameters import DEFAULTS
from wedlm.modeling_wedlm.hub_code import AUTO_MAP, flat_files


@pytest.mark.parametrize(
    "model_type, tied, rows, dtype",
    [
        ("qwen2", False, TOKENS, torch.float32),
        ("qwen2", True, TOKENS + 1, torch.bfloat16),
        ("qwen3", True, TOKENS, torch.bfloat16),
        ("qwen3", False, 384, torch.float32),
        ("llama", True, TOKENS, torch.float32),
        ("mistral", False, TOKENS, torch.bfloat16),
    ],
)
def test_there_and_back(tmp_path, model_type, tied, rows, dtype):
    source, wedlm, back = tmp_path / "source", tmp_path / "wedlm", tmp_path / "back"
    save_stock(source, model_type, rows, tied, dtype)
    stock = AutoModelForCausalLM.from_pretrained(source).eval()
    result = convert_to_wedlm(source, wedlm)
    assert result == (wedlm, TOKENS, [])
    model = AutoModelForCausalLM.from_pretrained(wedlm).eval()
    assert type(model) is WeDLMForCausalLM and model.dtype == dtype
    is_added = rows == TOKENS
    assert (model.config.mask_token_id, model.config.mask_row) == (TOKENS, "added" if is_added else "unused")
    assert model.config.vocab_size == rows + is_added
    input_ids = torch.arange(3, 35).view(2, 16)
    with torch.no_grad():
        logits = model(input_ids).logits[..., :rows]
        assert torch.equal(bits(logits), bits(stock(input_ids).logits))
    assert model.generation_config.eos_token_id == [END, SAY]
    tokenizer = AutoTokenizer.from_pretrained(wedlm)
    assert (tokenizer.mask_token, tokenizer.mask_token_id) == ("<|mask|>", TOKENS)
    assert tokenizer("a<|mask|>")["input_ids"][1:] == [TOKENS]
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(source).chat_template
    files = files_of(wedlm)
    assert {name: files[name].decode() for name in flat_files()} == flat_files()
    config = json.loads(files["config.json"])
    assert (config["auto_map"], config["architectures"]) == (AUTO_MAP, ["WeDLMForCausalLM"])

    assert convert_to_autoregressive(wedlm, back) == (back, None, [])
    old, new = files_of(source), files_of(back)
    assert {name for name in old if old[name] != new[name]} <= {"config.json", "tokenizer_config.json"}
    assert new.keys() == old.keys()
    assert new["tokenizer_config.json"] == old["tokenizer_config.json"].replace(*OLD_NAME)
    again = AutoModelForCausalLM.from_pretrained(back)
    assert type(again) is type(stock) and again.dtype == dtype
    assert again.config.to_dict() == stock.config.to_dict() | {"_name_or_path": str(back)}


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}


@pytest.mark.parametrize(
    "file, fields, reason",
    [
        ("generation_config.json", {}, None),
        ("generation_config.json", None, None),
        ("generation_config.json", {"num_beams": 2}, "num_beams=2"),
        ("config.json", DYNAMIC, "rope_type="),
    ],
)
def test_a_converted_model_writes_the_text_of_its_source_by_default(source, tmp_path, file, fields, reason):
    """Token by token where parallel decoding is refused."""
    if fields is None:
        (source / file).unlink()
    else:
        edit(source / file, **fields)
    notes = convert_to_wedlm(source, tmp_path / "wedlm").notes
    assert "".join(notes).startswith(f"This checkpoint decodes token by token only: {reason}" if reason else "")
    stock, model = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (source, tmp_path / "wedlm"))
    assert model.generation_config.decoding == ("autoregressive" if reason else "verified")
    assert model.generation_config.eos_token_id == [END, SAY]
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(*(each.generate(tokens, max_new_tokens=20, do_sample=False) for each in (stock, model)))
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert (tmp_path / "back" / "generation_config.json").exists() == (fields is not None)


def test_what_was_trained_in_masks_still_is_after_a_time_as_a_stock_model(tmp_path):
    """With its parameters of decoding, also where transformers has written the stock model in between."""
    convert_to_autoregressive(DEMO_FOLDER, tmp_path / "plain")
    AutoModelForCausalLM.from_pretrained(tmp_path / "plain").save_pretrained(tmp_path / "tuned")
    AutoTokenizer.from_pretrained(tmp_path / "plain").save_pretrained(tmp_path / "tuned")
    demo = json.loads((DEMO_FOLDER / "generation_config.json").read_text())
    for folder in ("plain", "tuned"):
        generation = json.loads((tmp_path / folder / "generation_config.json").read_text())
        assert not generation.keys() & DEFAULTS.keys()
        assert convert_to_wedlm(tmp_path / folder, tmp_path / f"{folder}-again").notes == [
            "The tokenizer has a mask_token, '<|mask|>' (id 3); it is kept as MASK."
        ]
        model = AutoModelForCausalLM.from_pretrained(tmp_path / f"{folder}-again")
        assert is_trained_in_masks(model) and "wedlm" not in model.config.to_dict()
        own = model.generation_config.to_dict()
        assert {name: own[name] for name in DEFAULTS} == {name: demo.get(name) for name in DEFAULTS}


@pytest.mark.parametrize("rows", [TOKENS, 384], ids=["added", "unused"])
def test_a_row_of_mask_that_goes_takes_its_training_along(tmp_path, rows):
    save_stock(tmp_path / "source", rows=rows)
    convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm")
    edit(tmp_path / "wedlm" / "config.json", mask_trained=True)
    edit(tmp_path / "wedlm" / "generation_config.json", decoding="blockwise", window_size=3)
    notes = convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "plain").notes
    convert_to_wedlm(tmp_path / "plain", tmp_path / "again")
    stays, config = rows > TOKENS, json.loads((tmp_path / "again" / "config.json").read_text())
    assert len(notes) == (not stays) and config["mask_trained"] == stays
    generation = json.loads((tmp_path / "again" / "generation_config.json").read_text())
    assert (generation["decoding"], generation.get("window_size")) == (
        ("blockwise", 3) if stays else ("verified", None)
    )
    edit(tmp_path / "plain" / "config.json", wedlm={"mask_token_id": TOKENS + 1, "decoding": "streaming"})
    convert_to_wedlm(tmp_path / "plain", tmp_path / "again", overwrite=True)
    assert not json.loads((tmp_path / "again" / "config.json").read_text())["mask_trained"], "another token is MASK"


def test_back_after_training(source, tmp_path):
    """save_pretrained() keeps mask_row for the way back, and writes parameters that Qwen does not know."""
    convert_to_wedlm(source, tmp_path / "wedlm")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "wedlm")
    model.save_pretrained(tmp_path / "trained")
    AutoTokenizer.from_pretrained(tmp_path / "wedlm").save_pretrained(tmp_path / "trained")
    assert "window_size" in json.loads((tmp_path / "trained" / "generation_config.json").read_text())
    convert_to_autoregressive(tmp_path / "trained", tmp_path / "back")
    generation = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert not {"decoding", "window_size", "entropy_threshold", "distance_penalty"} & generation.keys()
    assert generation["eos_token_id"] == [END, SAY]
    tokenizer_config = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in tokenizer_config["additional_special_tokens"]  # the name that transformers 4 reads
    assert "extra_special_tokens" not in tokenizer_config
    vocabularies = (AutoTokenizer.from_pretrained(folder).get_vocab() for folder in (source, tmp_path / "back"))
    assert len({frozenset(vocabulary) for vocabulary in vocabularies}) == 1


def test_an_official_checkpoint_keeps_its_weights_and_gets_our_code(checkpoint, tmp_path):
    source = tmp_path / "official"
    shutil.copytree(checkpoint, source)
    (source / "modeling_wedlm.py").write_text("raise RuntimeError('the broken remote code ran')\n")
    edit(source / "config.json", auto_map={"AutoModel": "modeling_wedlm.WeDLMOther", "AutoX": "x.X"})
    result = convert_to_wedlm(source, tmp_path / "ours")
    assert (result.mask_token_id, result.notes) == (159, [])
    files = files_of(tmp_path / "ours")
    assert files["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert {name: files[name].decode() for name in flat_files()} == flat_files()
    assert json.loads(files["config.json"])["auto_map"] == AUTO_MAP
    back = convert_to_autoregressive(tmp_path / "ours", tmp_path / "back")
    assert back.mask_token_id == 159 and "MASK, token 159, stays" in back.notes[0]
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == files["model.safetensors"]
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    assert type(stock) is (Qwen3ForCausalLM if checkpoint.name == "q3" else Qwen2ForCausalLM)


def test_an_official_checkpoint_without_mask_is_pointed_out(tmp_path):
    shutil.copytree(CHECKPOINTS / "q3", tmp_path / "official")
    edit(tmp_path / "official" / "config.json", mask_token_id=None)
    result = convert_to_wedlm(tmp_path / "official", tmp_path / "ours")
    assert result.mask_token_id is None and "no mask_token_id" in result.notes[0]
    assert convert_to_autoregressive(tmp_path / "ours", tmp_path / "back").notes == []


def test_a_converted_checkpoint_converts_again(source, tmp_path):
    first = convert_to_wedlm(source, tmp_path / "first")
    second = convert_to_wedlm(tmp_path / "first", tmp_path / "second")
    assert second.mask_token_id == first.mask_token_id and second.notes == []
    assert files_of(tmp_path / "second") == files_of(tmp_path / "first")


# --- MASK ---


def test_a_tied_head_that_is_in_the_file_gets_the_row_too(tmp_path):
    source = tmp_path / "source"
    save_stock(source, "qwen2")
    edit(source / "config.json", tie_word_embeddings=True)
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert weights_of(tmp_path / "wedlm")["lm_head.weight"].shape[0] == TOKENS + 1
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


def test_a_name_that_is_taken_is_not_used(tmp_path):
    save_stock(tmp_path / "source", rows=300)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "source")
    tokenizer.add_tokens(["<|mask|>"])
    tokenizer.save_pretrained(tmp_path / "source")
    assert convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm").mask_token_id == 260
    assert AutoTokenizer.from_pretrained(tmp_path / "wedlm").mask_token == "<|mask_2|>"


@pytest.mark.parametrize("file, name", [("config.json", "pad_token_id"), ("generation_config.json", "eos_token_id")])
def test_ids_that_only_a_config_names_are_used(tmp_path, file, name):
    save_stock(tmp_path / "source", rows=300)
    edit(tmp_path / "source" / file, **{name: [END, 270] if name == "eos_token_id" else 270})
    assert convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm").mask_token_id == 271


def test_no_tokenizer(tmp_path):
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

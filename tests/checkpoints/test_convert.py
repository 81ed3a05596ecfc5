"""Conversions there and back: weights, config, code and tokenizer."""

import json
import shutil

import pytest
import torch
from draft_models import drafted
from helpers import CHECKPOINTS, run_python
from stock_checkpoints import CLASSES, END, OLD_NAME, SAY, TOKENS, bits, edit, files_of, save_stock, weights_of
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from wedlm import WeDLMForCausalLM, convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError
from wedlm.modeling_wedlm.hub_code import AUTO_MAP, flat_files


@pytest.mark.few(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [TOKENS, TOKENS + 1, 384])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("model_type", CLASSES)
def test_there_and_back(tmp_path, model_type, tied, rows, dtype):
    source, wedlm, back = tmp_path / "source", tmp_path / "wedlm", tmp_path / "back"
    source.mkdir()
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
    assert all(
        torch.equal(bits(a), bits(b))
        for a, b in zip(again.state_dict().values(), stock.state_dict().values(), strict=True)
    )
    assert again.config.to_dict() == AutoModelForCausalLM.from_pretrained(source).config.to_dict() | {
        "_name_or_path": str(back)
    }
    assert AutoTokenizer.from_pretrained(back).get_vocab() == AutoTokenizer.from_pretrained(source).get_vocab()
    assert AutoTokenizer.from_pretrained(back).mask_token is None


@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_a_converted_llama_writes_the_text_of_the_stock_class(tmp_path, model_type):
    """In float64, so that no rounding decides."""
    source = tmp_path / "source"
    source.mkdir()
    llama3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, **llama3}
    save_stock(source, model_type, rows=300, dtype=torch.float64, rope_parameters=rope)
    convert_to_wedlm(source, tmp_path / "wedlm")
    stock, model = (AutoModelForCausalLM.from_pretrained(tmp_path / name).eval() for name in ("source", "wedlm"))
    input_ids = torch.arange(3, 43).view(2, 20)
    arguments = {"max_new_tokens": 40, "suppress_tokens": [model.config.mask_token_id], "pad_token_id": END}
    mask = torch.ones_like(input_ids)
    mask[0, :5] = 0
    expected = stock.generate(input_ids, attention_mask=mask, **arguments)
    for decoding in ("autoregressive", "verified"):
        assert torch.equal(model.generate(input_ids, attention_mask=mask, decoding=decoding, **arguments), expected)


@pytest.mark.full
def test_the_result_loads_without_the_package(source, tmp_path):
    convert_to_wedlm(source, tmp_path / "converted")
    code = """
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("converted", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("converted")
print(type(model).__module__.partition(".")[0], model.config.mask_token_id == tokenizer.mask_token_id == 259)
print(model.generate(**tokenizer("abc", return_tensors="pt"), max_new_tokens=3).shape)
"""
    out = run_python(code, tmp_path, wedlm=False)
    assert "transformers_modules True" in out


@pytest.mark.parametrize(
    "name, fields, reason",
    [
        ("config.json", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "rope_type="),
        ("generation_config.json", {"num_beams": 2}, "num_beams=2"),
    ],
)
def test_a_converted_model_that_cannot_decode_in_parallel_writes_the_text_of_its_source(
    source, tmp_path, name, fields, reason
):
    edit(source / name, **fields)
    (note,) = convert_to_wedlm(source, tmp_path / "wedlm").notes
    assert note.startswith(f"This checkpoint decodes token by token only: {reason}")
    stock, model = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (source, tmp_path / "wedlm"))
    assert model.generation_config.decoding == "autoregressive"
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(*(each.generate(tokens, max_new_tokens=20, do_sample=False) for each in (stock, model)))


@pytest.mark.parametrize("has_file", [True, False])
def test_a_converted_model_writes_the_text_of_its_source_by_default(source, tmp_path, has_file):
    if not has_file:
        (source / "generation_config.json").unlink()
    convert_to_wedlm(source, tmp_path / "wedlm")
    stock, model = (
        kind.from_pretrained(folder).eval()
        for kind, folder in ((AutoModelForCausalLM, source), (WeDLMForCausalLM, tmp_path / "wedlm"))
    )
    assert model.generation_config.decoding == "verified"
    assert model.generation_config.eos_token_id == stock.generation_config.eos_token_id == [END, SAY]
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(*(each.generate(tokens, max_new_tokens=20, do_sample=False) for each in (stock, model)))
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert (tmp_path / "back" / "generation_config.json").exists() == has_file


def test_back_after_training(source, tmp_path):
    """save_pretrained() keeps mask_row for the way back, and writes parameters that Qwen does not know."""
    convert_to_wedlm(source, tmp_path / "wedlm")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "wedlm")
    model.lm_head.weight.data.add_(1.0)
    model.save_pretrained(tmp_path / "trained")
    AutoTokenizer.from_pretrained(tmp_path / "wedlm").save_pretrained(tmp_path / "trained")
    assert "window_size" in json.loads((tmp_path / "trained" / "generation_config.json").read_text())
    convert_to_autoregressive(tmp_path / "trained", tmp_path / "back")
    generation = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert not {"decoding", "window_size", "entropy_threshold", "distance_penalty"} & generation.keys()
    assert generation["eos_token_id"] == [END, SAY]
    assert torch.equal(weights_of(tmp_path / "back")["lm_head.weight"], weights_of(source)["lm_head.weight"] + 1.0)
    tokenizer_config = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert "<|im_start|>" in tokenizer_config["additional_special_tokens"]  # the name that transformers 4 reads
    assert "extra_special_tokens" not in tokenizer_config
    assert AutoTokenizer.from_pretrained(tmp_path / "back").get_vocab().keys() == (
        AutoTokenizer.from_pretrained(source).get_vocab().keys()
    )


def test_an_official_checkpoint_keeps_its_weights_and_gets_our_code(checkpoint, tmp_path):
    source = tmp_path / "official"
    shutil.copytree(checkpoint, source)
    (source / "modeling_wedlm.py").write_text("raise RuntimeError('the broken remote code ran')\n")
    result = convert_to_wedlm(source, tmp_path / "ours")
    assert (result.mask_token_id, result.notes) == (159, [])
    files = files_of(tmp_path / "ours")
    assert files["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()
    assert {name: files[name].decode() for name in flat_files()} == flat_files()
    assert json.loads(files["config.json"])["auto_map"] == AUTO_MAP
    back = convert_to_autoregressive(tmp_path / "ours", tmp_path / "back")
    assert back.mask_token_id == 159 and "MASK, token 159, stays" in back.notes[0]
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == files["model.safetensors"]
    stock, ours = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("back", "ours"))
    assert type(stock) is (Qwen3ForCausalLM if checkpoint.name == "q3" else Qwen2ForCausalLM)
    input_ids = torch.arange(3, 19)[None]
    assert torch.equal(stock(input_ids).logits, ours(input_ids).logits)


def test_the_code_of_others_is_not_named(tmp_path):
    shutil.copytree(CHECKPOINTS / "q3", tmp_path / "official")
    edit(tmp_path / "official" / "config.json", auto_map={"AutoModel": "modeling_wedlm.WeDLMOther", "AutoX": "x.X"})
    convert_to_wedlm(tmp_path / "official", tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["auto_map"] == AUTO_MAP


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


def test_a_model_that_contains_a_draft_adapter_has_no_stock_class(tmp_path):
    drafted().save_pretrained(tmp_path / "model")
    with pytest.raises(CheckpointError, match="model contains a draft adapter, .* stock checkpoint; convert its base"):
        convert_to_autoregressive(tmp_path / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()

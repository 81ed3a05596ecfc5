import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import CHECKPOINTS, REPOSITORY, put_into_hub_cache, run_python
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from qwen_checkpoints import END, INDEX, SAY, TOKENS, save_qwen
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from wedlm import WeDLMForCausalLM, convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints import convert, new_folder
from wedlm.checkpoints.conversion_error import ConversionError
from wedlm.modeling_wedlm.hub_code import AUTO_MAP, flat_files

OLD_NAME = (b'"extra_special_tokens"', b'"additional_special_tokens"')  # of transformers 4, which the way back writes


def edit(path, removed=(), **fields):
    content = {name: value for name, value in json.loads(path.read_text()).items() if name not in removed}
    path.write_text(json.dumps(content | fields))


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def weights_of(folder):
    return {name: tensor for path in Path(folder).glob("*.safetensors") for name, tensor in load_file(path).items()}


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.fixture(autouse=True)
def no_bars():
    disable_progress_bars()
    yield
    enable_progress_bars()


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    save_qwen(tmp_path / "source")
    return tmp_path / "source"


# --- There and back ---


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [TOKENS, TOKENS + 1, 384])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_there_and_back(tmp_path, model_type, tied, rows, dtype):
    source, wedlm, back = tmp_path / "source", tmp_path / "wedlm", tmp_path / "back"
    source.mkdir()
    save_qwen(source, model_type, rows, tied, dtype)
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


def test_the_order_of_a_file_is_that_of_its_bytes(tmp_path):
    """A header may list tensors in another order than their bytes have, and mix types and sizes."""
    source = tmp_path / "source"
    source.mkdir()
    save_qwen(source, hidden_size=31, dtype=torch.bfloat16)
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        for name in tensors:
            if name.endswith("norm.weight"):
                tensors[name] = tensors[name].float()
        if path == SHARD(source, 1):
            tensors["model.rotary_emb.inv_freq"] = torch.ones(())  # of old checkpoints
        save_file(tensors, path)
        write_header(path, lambda header: [header.update({name: header.pop(name)}) for name in sorted(header)[::-1]])
    index = json.loads((source / INDEX).read_text())
    index["weight_map"]["model.rotary_emb.inv_freq"] = SHARD(source, 1).name
    (source / INDEX).write_text(json.dumps(index))
    convert_to_wedlm(source, tmp_path / "wedlm")
    old, new = weights_of(source), weights_of(tmp_path / "wedlm")
    for name in old:
        assert torch.equal(new[name][: len(old[name])] if old[name].ndim else new[name], old[name]), name
    for name in ("model.embed_tokens.weight", "lm_head.weight"):  # summed in more digits than the weights have
        assert torch.equal(new[name][-1], old[name].double().mean(dim=0).bfloat16())


def test_a_single_file_is_preferred_to_an_index(source, tmp_path):
    save_file(weights_of(source), source / "model.safetensors")
    (source / INDEX).write_text("{}")
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert [path.name for path in (tmp_path / "wedlm").glob("model*saf*")] == ["model.safetensors"]
    assert not (tmp_path / "wedlm" / INDEX).exists()


def test_mean_of_chunks(source, tmp_path, monkeypatch):
    """A large embedding is read in parts, in bytes as in rows."""
    convert_to_wedlm(source, tmp_path / "whole")
    monkeypatch.setattr("wedlm.checkpoints.shards.CHUNK_BYTES", 1000)
    convert_to_wedlm(source, tmp_path / "parts")
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=0, atol=1e-7)


def test_a_tied_head_that_is_in_the_file_gets_the_row_too(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    save_qwen(source, "qwen2")
    edit(source / "config.json", tie_word_embeddings=True)
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert weights_of(tmp_path / "wedlm")["lm_head.weight"].shape[0] == TOKENS + 1
    AutoModelForCausalLM.from_pretrained(tmp_path / "wedlm")
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    old, new = files_of(source), files_of(tmp_path / "back")
    assert {name for name in old if old[name] != new[name]} == {"config.json", "tokenizer_config.json"}


def test_a_single_file_and_old_buffers(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    save_qwen(source)
    weights = {**weights_of(source), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    for path in (*source.glob("*.safetensors"), source / INDEX):
        path.unlink()
    save_file(weights, source / "model.safetensors")
    convert_to_wedlm(source, tmp_path / "wedlm")
    assert not (tmp_path / "wedlm" / INDEX).exists()
    AutoModelForCausalLM.from_pretrained(tmp_path / "wedlm")
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_what_an_old_config_says_survives(tmp_path, model_type):
    """Flat fields, yarn, sliding windows, and a Qwen2 without head_dim, read again by the stock class."""
    source = tmp_path / "source"
    source.mkdir()
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    stock = save_qwen(source, model_type, rows=300, **windows)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    edit(
        source / "config.json",
        ["rope_parameters", "dtype", "layer_types"],
        rope_theta=5e5,
        rope_scaling=yarn,
        torch_dtype="bfloat16",
    )
    assert ("head_dim" in json.loads((source / "config.json").read_text())) == (model_type == "qwen3")
    result = convert_to_wedlm(source, tmp_path / "wedlm")
    assert len(result.notes) == 1 and "layer_types" in result.notes[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "wedlm")
    assert model.config.head_dim == (12 if model_type == "qwen3" else 8)
    assert model.config.rope_parameters == {**model.config.rope_parameters, **yarn, "rope_theta": 5e5}
    assert model.config.layer_types == ["full_attention", "sliding_attention"] and model.config.sliding_window == 8
    assert model.dtype == torch.bfloat16
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    read = type(stock.config).from_pretrained
    assert read(tmp_path / "back").to_dict() == read(source).to_dict()
    flat = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (flat["rope_theta"], flat["torch_dtype"]) == (5e5, "bfloat16")
    assert flat["rope_scaling"].items() >= yarn.items()
    assert not {"mask_token_id", "mask_row", "qk_norm", "auto_map", "rope_parameters"} & flat.keys()
    assert ("head_dim" in flat) == (model_type == "qwen3")


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


def test_back_after_training(source, tmp_path):
    """What save_pretrained() writes keeps what the way back must know, and more that Qwen has no use for."""
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


# --- The tokenizer ---


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
    with pytest.raises(ConversionError, match="uses the token id 259, and its model has 259 rows"):
        convert_to_wedlm(source, tmp_path / "wedlm")
    shutil.rmtree(source)
    source.mkdir()
    save_qwen(source, rows=300, tokenizer=False)
    tokenizer.save_pretrained(source)
    assert convert_to_wedlm(source, tmp_path / "wedlm").mask_token_id == 260
    assert AutoTokenizer.from_pretrained(tmp_path / "wedlm").mask_token == "<|mask_2|>"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("name", ["eos_token_id", "pad_token_id", "bos_token_id"])
def test_ids_that_only_a_config_names_are_used(tmp_path, file, name):
    (tmp_path / "source").mkdir()
    save_qwen(tmp_path / "source", rows=300)
    edit(tmp_path / "source" / file, **{name: [END, 270] if name == "eos_token_id" else 270})
    assert convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm").mask_token_id == 271
    edit(tmp_path / "source" / "generation_config.json", **{name: "x"})
    with pytest.raises(ConversionError, match=f"{name} of .* is 'x', which is no token id; correct"):
        convert_to_wedlm(tmp_path / "source", tmp_path / "other")


def test_a_gap_between_tokens_is_used_when_none_is_behind_them(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    save_qwen(source)
    content = json.loads((source / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] != SAY]
    content["model"]["vocab"] |= {"<|endoftext|>": 256, "<|im_end|>": 258}  # or tokenizers would number them itself
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


def test_no_tokenizer(tmp_path):
    (tmp_path / "source").mkdir()
    save_qwen(tmp_path / "source", rows=300, tokenizer=False)
    result = convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm")
    assert result.mask_token_id == 300 and "has no tokenizer, and row 300 is MASK's; put the" in result.notes[0]
    assert not list((tmp_path / "wedlm").glob("tokenizer*"))
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    assert {**weights_of(tmp_path / "back")}.keys() == weights_of(tmp_path / "source").keys()
    assert weights_of(tmp_path / "back")["lm_head.weight"].shape[0] == 300


def test_a_tokenizer_that_went_on_behind_mask_keeps_its_ids(tmp_path):
    (tmp_path / "source").mkdir()
    save_qwen(tmp_path / "source", rows=300)
    convert_to_wedlm(tmp_path / "source", tmp_path / "wedlm")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "wedlm")
    tokenizer.add_tokens(["<|mine|>"])
    tokenizer.save_pretrained(tmp_path / "wedlm")
    with pytest.raises(ConversionError, match=r"gives other ids to \['<\|mine\|>'\]; set mask_row to null"):
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
        ConversionError, match="mask_token_id=259 is not the last of the 270 rows .*set mask_row to null"
    ):
        convert_to_autoregressive(tmp_path / "resized", tmp_path / "back")


# --- What is pointed out ---


@pytest.mark.parametrize(
    "fields, said",
    [
        (
            {"repetition_penalty": 1.05, "temperature": 0.7, "do_sample": True, "top_k": 20},
            ["repetition_penalty=1.05"],
        ),
        ({"no_repeat_ngram_size": 3, "min_new_tokens": 4}, ["no_repeat_ngram_size=3", "min_new_tokens=4"]),
        ({"num_beams": 4}, ["num_beams=4 is not offered"]),
        ({"repetition_penalty": 1.0, "do_sample": True, "top_p": 0.8, "suppress_tokens": [3]}, []),
    ],
)
def test_generation_configs_that_limit_parallel_decoding(source, tmp_path, fields, said):
    edit(source / "generation_config.json", **fields)
    notes = convert_to_wedlm(source, tmp_path / "wedlm").notes
    assert len(notes) == bool(said) and all(words in notes[0] for words in said)
    assert not any("temperature" in note or "top_k" in note for note in notes)
    assert (tmp_path / "wedlm" / "generation_config.json").read_bytes() == (
        source / "generation_config.json"
    ).read_bytes()


# --- The Hub ---


@pytest.fixture
def hub(source, tmp_path, monkeypatch):
    """`source` as the Hub's cache holds it: links into another folder."""
    put_into_hub_cache(source, tmp_path / "hub", "someone/qwen")
    (snapshot,) = (tmp_path / "hub").glob("*/snapshots/*")
    blobs = tmp_path / "hub" / "models--someone--qwen" / "blobs"
    blobs.mkdir()
    for i, path in enumerate(sorted(snapshot.iterdir())):
        path.rename(blobs / str(i))
        path.symlink_to(blobs / str(i))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot


def test_a_name_on_the_hub(hub, source, tmp_path):
    convert_to_wedlm("someone/qwen", tmp_path / "wedlm")
    convert_to_wedlm(source, tmp_path / "expected")
    assert files_of(tmp_path / "wedlm") == files_of(tmp_path / "expected")
    assert not any(path.is_symlink() for path in (tmp_path / "wedlm").iterdir())


def test_a_network_that_breaks_off(tmp_path, monkeypatch):
    class ReadTimeout(Exception):  # as httpx has it: neither an OSError nor a ValueError
        pass

    def time_out(*arguments, **options):
        raise ReadTimeout("timed out")

    monkeypatch.setattr(convert, "snapshot_download", time_out)
    with pytest.raises(ConversionError, match=r"cannot be had from the Hub \(timed out\)"):
        convert_to_wedlm("someone/qwen", tmp_path / "wedlm")


def test_what_is_asked_of_the_hub(hub, tmp_path, monkeypatch):
    """No weights before the config is known to fit, and no others than the index lists."""
    asked, download = [], convert.snapshot_download

    def record(name, revision, allow_patterns):
        asked.append(allow_patterns)
        assert revision == (hub.name if len(asked) == 2 else None)
        return download(name, revision=revision, allow_patterns=allow_patterns)

    monkeypatch.setattr(convert, "snapshot_download", record)
    convert_to_wedlm("someone/qwen", tmp_path / "wedlm")
    shards = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert asked[0] == [name for name in asked[1] if name not in shards]
    assert {name for name in asked[1] if "safetensors" in name} == {INDEX, *shards}
    assert not any(
        name.endswith((".bin", ".py", "*")) and not name.startswith(("LICENSE", "NOTICE")) for name in asked[1]
    )
    edit(hub / "config.json", model_type="mixtral")
    with pytest.raises(ConversionError, match="'mixtral'"):
        convert_to_wedlm("someone/qwen", tmp_path / "other")
    assert len(asked) == 3


def test_a_name_that_the_hub_does_not_have(hub, tmp_path):
    with pytest.raises(ConversionError, match="someone/nothing is no folder, and cannot be had from the Hub"):
        convert_to_wedlm("someone/nothing", tmp_path / "wedlm")


# --- Refusals ---


def write_header(path, change):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def cut(path, num_bytes):
    path.write_bytes(path.read_bytes()[:num_bytes])


def only_pickles(folder):
    for path in (*folder.glob("*.safetensors"), folder / INDEX):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")


def config(**fields):
    return lambda folder: edit(folder / "config.json", **fields)


def layers(number):
    return lambda folder: edit(folder / "config.json", ["layer_types"], num_hidden_layers=number)


def point(name):
    def change(folder):
        content = json.loads((folder / INDEX).read_text())
        content["weight_map"]["model.norm.weight"] = name
        (folder / INDEX).write_text(json.dumps(content))

    return change


def put_elsewhere(folder):
    (folder.parent / "elsewhere.safetensors").write_bytes(SHARD(folder, 3).read_bytes())
    point("../elsewhere.safetensors")(folder)


def SHARD(folder, i):
    return folder / f"model-0000{i}-of-00003.safetensors"


def drop(name):
    def change(folder):
        index = json.loads((folder / INDEX).read_text())
        path = folder / index["weight_map"].pop(name)
        save_file({other: tensor for other, tensor in load_file(path).items() if other != name}, path)
        (folder / INDEX).write_text(json.dumps(index))

    return change


def shrink(header):
    tensor = next(tensor for name, tensor in header.items() if name != "__metadata__")
    tensor["shape"] = [1, *tensor["shape"][1:]]


def swap_for_folder(path):
    path.unlink()
    path.mkdir()


def retype(header):
    next(tensor for name, tensor in header.items() if name != "__metadata__")["dtype"] = "F8_E4M3"


def overlap(header):
    tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
    first, second = sorted(tensors, key=lambda tensor: tensor["data_offsets"])[:2]
    length = second["data_offsets"][1] - second["data_offsets"][0]
    second["data_offsets"] = [0, length]


REFUSED = {
    "another architecture": (config(model_type="llama"), "of model_type 'llama'; supported is dense Qwen2ForCausalLM"),
    "a mixture of experts": (config(model_type="qwen3_moe"), "'qwen3_moe', a mixture of experts; supported is dense"),
    "no model_type": (config(model_type=None), "of model_type None; supported"),
    "another head": (
        config(architectures=["Qwen3ForSequenceClassification"]),
        "Qwen3ForSequenceClassification'.*from",
    ),
    "quantized": (config(quantization_config={"quant_method": "fp8"}), "is quantized .*start from"),
    "a bias on the output": (config(attention_bias=True), "attention_bias=True, which in Qwen3"),
    "a nonsense config": (config(num_attention_heads="four"), "No model can be built .*num_attention_heads.*correct"),
    "heads that do not divide": (config(num_key_value_heads=3), "No model can be built .*num_key_value_heads=3"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json; give"),
    "a config that is no JSON": (
        lambda folder: (folder / "config.json").write_text("{"),
        "config.json cannot be read as",
    ),
    "a config that is a list": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "holds no JSON object; copy",
    ),
    "pickles": (
        only_pickles,
        r"only pickled weights \(pytorch_model.bin\), and safetensors are wanted.*use_safetensors",
    ),
    "no weights": (
        lambda folder: [path.unlink() for path in folder.glob("model*")],
        "has neither model.safetensors nor .*if its weights are pickled .*use_safetensors",
    ),
    "a shard outside": (put_elsewhere, r"names the shard '../elsewhere.safetensors', which is no .*download"),
    "an absolute shard": (point("/etc/x.safetensors"), "names the shard '/etc/x.safetensors'"),
    "a shard of Windows": (point("..\\x.safetensors"), "names the shard"),
    "a shard that is a pickle": (point("model.bin"), "names the shard 'model.bin'"),
    "a shard that is no name": (point(3), "names the shard 3"),
    "an index without a map": (lambda folder: (folder / INDEX).write_text("{}"), "has no weight_map; copy"),
    "a missing shard": (
        lambda folder: SHARD(folder, 2).unlink(),
        "lacks model-00002-of-00003.safetensors, which its ind",
    ),
    "an index that is wrong": (point("model-00001-of-00003.safetensors"), "model.norm.weight lies in model-00001"),
    "a cut shard": (
        lambda folder: cut(SHARD(folder, 2), -1),
        "00002-of-00003.safetensors is cut short or damaged .*copy",
    ),
    "a cut header": (lambda folder: cut(SHARD(folder, 2), 30), "is cut short or damaged"),
    "an empty shard": (lambda folder: cut(SHARD(folder, 2), 0), "is cut short or damaged"),
    "a longer shard": (lambda folder: SHARD(folder, 2).open("ab").write(b"x"), "is cut short or damaged"),
    "8 bits": (
        lambda folder: write_header(SHARD(folder, 2), retype),
        "F8_E4M3, and only BF16, F16, F32, F64 are supp",
    ),
    "tensors that overlap": (lambda folder: write_header(SHARD(folder, 2), overlap), "is cut short or damaged"),
    "other shapes": (
        config(intermediate_size=64),
        r"down_proj.weight of .* has the shape \[32, 48\], and by its config \[32, 64\]; correct",
    ),
    "other rows": (config(vocab_size=300), r"has the shape \[259, 32\], and by its config \[300, 32\]"),
    "more layers than weights": (layers(3), r"has no weight model.layers.2.*; correct"),
    "more weights than layers": (layers(1), r"has a weight model.layers.1.* no place for"),
    "a weight twice": (
        lambda folder: shutil.copy(SHARD(folder, 1), SHARD(folder, 2)),
        "stands in both model-00001-of-00003.safetensors and model-00002",
    ),
    "a tokenizer that does not load": (
        lambda folder: edit(folder / "tokenizer_config.json", tokenizer_class=7),
        "The tokenizer in .* cannot be loaded .*; correct its files",
    ),
    "a tokenizer of another kind": (
        lambda folder: edit(folder / "tokenizer.json", model={"type": "Unigram", "vocab": [["a", 0.0]]}),
        "The tokenizer files in .* are none of Qwen's .*; correct them",
    ),
    "added tokens without ids": (
        lambda folder: edit(folder / "tokenizer.json", added_tokens=[{"content": "<|endoftext|>"}]),
        "are none of Qwen's .KeyError: 'id'",
    ),
    "an odd byte count": (
        lambda folder: write_header(SHARD(folder, 2), shrink),
        "is cut short or damaged .* has a wrong number of bytes",
    ),
    "a missing head": (drop("lm_head.weight"), "has no weight lm_head.weight, which"),
    "metadata that counts in words": (
        lambda folder: edit(folder / INDEX, metadata={"total_size": "much"}),
        "has metadata={'total_size': 'much'}; copy",
    ),
    "a padding id behind the rows": (config(pad_token_id=999), "No model can be built .*correct"),
    "a type that does not exist": (config(dtype="bf16"), "No model can be built .*correct"),
    "a mask_token that is a list": (
        lambda folder: edit(folder / "tokenizer_config.json", mask_token=["a"]),
        "are none of Qwen's .*mask_token is",
    ),
    "ids that are texts": (
        lambda folder: (folder / "added_tokens.json").write_text('{"a": "1"}'),
        "are none of Qwen's .*its id no whole number",
    ),
    "a tokenizer that the library does not know": (
        lambda folder: edit(folder / "tokenizer.json", pre_tokenizer={"type": "Nothing"}),
        "tokenizer.json is not understood .*; correct it",
    ),
    "a mask_token that pads": (
        lambda folder: [
            edit(folder / "config.json", pad_token_id=258),
            edit(folder / "tokenizer_config.json", mask_token="<|im_end|>"),
        ],
        "also ends or pads the text",
    ),
    "an adapter": (
        lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
        "is an adapter of PEFT; merge it",
    ),
    "a shard that is a folder": (lambda folder: swap_for_folder(SHARD(folder, 2)), "lacks model-00002"),
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
def test_what_cannot_be_converted_is_refused_in_a_sentence_and_nothing_is_written(source, tmp_path, name):
    change, message = REFUSED[name]
    change(source)
    before = files_of(tmp_path)
    with pytest.raises(ConversionError, match=message) as error:
        convert_to_wedlm(source, tmp_path / "wedlm")
    assert "\n" not in str(error.value) and str(error.value).endswith(".")
    assert files_of(tmp_path) == before and not (tmp_path / "wedlm").exists()


def refuse_access(*arguments):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(arguments[0]))


def test_a_shard_that_may_not_be_read(source, tmp_path, monkeypatch):
    monkeypatch.setattr("wedlm.checkpoints.shards.open", refuse_access, raising=False)
    with pytest.raises(
        ConversionError, match=r"model-00001-of-00003.safetensors cannot be read \(Permission denied\)"
    ):
        convert_to_wedlm(source, tmp_path / "wedlm")


def test_a_place_that_may_not_be_looked_into(source, tmp_path, monkeypatch):
    (tmp_path / "wedlm").mkdir()
    monkeypatch.setattr("wedlm.checkpoints.new_folder.Path.iterdir", refuse_access)
    with pytest.raises(
        ConversionError, match=r"wedlm cannot be looked into \(.*Permission denied.*\); choose another"
    ):
        convert_to_wedlm(source, tmp_path / "wedlm")


def test_refusals_on_the_way_back(source, tmp_path):
    with pytest.raises(ConversionError, match="of model_type 'qwen3'; supported is a WeDLM checkpoint; without --to-"):
        convert_to_autoregressive(source, tmp_path / "back")
    shutil.copytree(CHECKPOINTS / "q25", tmp_path / "both")
    edit(tmp_path / "both" / "config.json", attention_bias=False)
    with pytest.raises(ConversionError, match="qk_norm=False and attention_bias=False; Qwen3 has"):
        convert_to_autoregressive(tmp_path / "both", tmp_path / "back")
    with pytest.raises(ConversionError, match="is neither a folder nor a name on the Hub"):
        convert_to_autoregressive(tmp_path / "nothing", tmp_path / "back")
    assert not (tmp_path / "back").exists()


# --- The place of the result ---


def test_places_that_are_refused(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    (tmp_path / "full" / "config.json").write_text('{"auths": {}}')  # of another program
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "here").mkdir()
    (tmp_path / "mount").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    is_mount = os.path.ismount
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "mount" or is_mount(path))
    before = files_of(tmp_path)
    for out, overwrite, message in (
        (tmp_path / "file", True, "is a file; choose"),
        (tmp_path / "full", False, "is not empty; choose another folder, or pass --overwrite"),
        (tmp_path / "full", True, "is no checkpoint, and only a checkpoint is overwritten"),
        (source, True, "are the same folder, or one lies in the other"),
        (source / "inside", False, "are the same folder, or one lies in the other"),
        (tmp_path / "file" / "inside", False, r"could not be written \(.*\) and is as it was; make room"),
        (".", False, "is a mount point, or the folder you are in"),
        ("", False, "is a mount point, or the folder you are in"),
        ("..", False, "is a mount point, or the folder you are in|is not empty"),
        (tmp_path / "loop", False, "cannot be looked into"),
        (tmp_path / "mount", False, "is a mount point, or the folder you are in"),
    ):
        with pytest.raises(ConversionError, match=message):
            convert_to_wedlm(source, out, overwrite=overwrite)
        assert files_of(tmp_path) == before
    shutil.copy(source / "config.json", tmp_path)
    monkeypatch.chdir("/")
    with pytest.raises(ConversionError, match="are the same folder, or one lies in the other"):
        convert_to_wedlm(source, tmp_path, overwrite=True)  # it would take the source with it


def test_parents_made_in_vain_go_away_again(source, tmp_path):
    edit(source / "tokenizer_config.json", tokenizer_class=7)
    with pytest.raises(ConversionError, match="cannot be loaded"):
        convert_to_wedlm(source, tmp_path / "a" / "b" / "c")
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_the_disk_that_is_measured_is_that_of_the_parent(source, tmp_path, monkeypatch):
    (tmp_path / "wedlm").mkdir()
    asked = []
    usage = shutil.disk_usage(tmp_path)._replace(free=10**12)
    monkeypatch.setattr(new_folder.shutil, "disk_usage", lambda path: asked.append(path) or usage)
    convert_to_wedlm(source, tmp_path / "wedlm")
    convert_to_wedlm(source, tmp_path / "a" / "b")
    assert asked == [tmp_path, tmp_path]


def test_what_comes_along(source, tmp_path):
    """Licences and templates, and no code of others."""
    (source / "additional_chat_templates").mkdir()
    come = {"LICENSE": "free", "NOTICE.txt": "ours", "additional_chat_templates/tool.jinja": "{{ tools }}"}
    for name, text in {**come, "README.md": "theirs", "modeling_other.py": "raise", "optimizer.pt": "pickle"}.items():
        (source / name).write_text(text)
    convert_to_wedlm(source, tmp_path / "wedlm")
    files = files_of(tmp_path / "wedlm")
    assert {name: files[name].decode() for name in come} == come
    assert not {"README.md", "modeling_other.py", "optimizer.pt"} & files.keys()


def test_an_empty_folder_and_new_parents(source, tmp_path):
    (tmp_path / "empty").mkdir()
    convert_to_wedlm(source, tmp_path / "empty")
    convert_to_wedlm(source, tmp_path / "a" / "b")
    assert files_of(tmp_path / "empty") == files_of(tmp_path / "a" / "b")


def test_overwriting_replaces_the_whole_folder(source, tmp_path):
    convert_to_wedlm(source, tmp_path / "wedlm")
    expected = files_of(tmp_path / "wedlm")
    (tmp_path / "wedlm" / "old.safetensors").write_text("old")
    convert_to_wedlm(source, tmp_path / "wedlm", overwrite=True)
    assert files_of(tmp_path / "wedlm") == expected
    assert {path.name for path in tmp_path.iterdir()} == {"source", "wedlm"}


def test_a_folder_that_fills_up_meanwhile_is_not_replaced(source, tmp_path, monkeypatch):
    original = convert.write_weights

    def and_then(plan, folder):
        original(plan, folder)
        (tmp_path / "wedlm").mkdir()
        (tmp_path / "wedlm" / "letter.txt").write_text("mine")

    monkeypatch.setattr(convert, "write_weights", and_then)
    with pytest.raises(ConversionError, match="could not be written"):
        convert_to_wedlm(source, tmp_path / "wedlm")
    assert files_of(tmp_path / "wedlm") == {"letter.txt": b"mine"}
    assert {path.name for path in tmp_path.iterdir()} == {"source", "wedlm"}


def test_disk_space_is_checked_first(source, tmp_path, monkeypatch):
    (tmp_path / "wedlm.incomplete-0").mkdir()
    needed = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(new_folder.shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    with pytest.raises(ConversionError, match="needs 0.03 GB and its disk has 0.00 GB free; free some .*incomplete-0"):
        convert_to_wedlm(source, tmp_path / "wedlm")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "wedlm.incomplete-0"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_disk_that_is_full_in_the_middle(source, tmp_path, monkeypatch, overwrite, number):
    if overwrite:
        convert_to_wedlm(source, tmp_path / "wedlm")
    before = files_of(tmp_path)
    original = convert.write_shard

    def fill(shard, path, num_rows, progress):
        original(shard, path, num_rows, progress)
        if "00002" in path.name:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(convert, "write_shard", fill)
    with pytest.raises(ConversionError, match=rf"could not be written \(.*{os.strerror(number)}\) and is as"):
        convert_to_wedlm(source, tmp_path / "wedlm", overwrite=overwrite)
    assert files_of(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 1 + overwrite


def test_what_a_killed_conversion_left_is_pointed_out(source, tmp_path):
    (tmp_path / "wedlm.incomplete-0").mkdir()
    notes = convert_to_wedlm(source, tmp_path / "wedlm").notes
    assert len(notes) == 1 and str(tmp_path / "wedlm.incomplete-0") in notes[0]
    assert (tmp_path / "wedlm.incomplete-0").exists()  # it could be that of another process


def test_a_bar_for_every_shard(source, tmp_path, capfd):
    enable_progress_bars()
    try:
        convert_to_wedlm(source, tmp_path / "wedlm")
    finally:
        disable_progress_bars()
    err = capfd.readouterr().err
    for i in (1, 2, 3):
        assert f"model-0000{i}-of-00003.safetensors ({i}/3): 100%" in err


# In a child, every time it opens, makes, renames or removes something under `parent`, it may be struck.


def strike_child(source, parent, overwrite, by_kill, moment):
    """Converts in a child that is struck at that moment, and returns its exit code: 0 if it had ended before."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = 0

    def strike(event, arguments):
        nonlocal seen
        if event not in ("open", "os.mkdir", "os.rename", "os.rmdir", "os.remove"):
            return
        seen += str(parent) in str(arguments[:1])
        if seen == moment:
            if by_kill:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            raise KeyboardInterrupt

    code = 1
    try:
        sys.addaudithook(strike)
        convert_to_wedlm(source, parent / "out", overwrite=overwrite)
        code = 0
    except KeyboardInterrupt:
        code = 7
    finally:
        os._exit(code)


def strike(tmp_path, overwrite, by_kill, step):
    source, parent = tmp_path / "source", tmp_path / "parent"
    source.mkdir()
    parent.mkdir()
    save_qwen(source)
    convert_to_wedlm(source, tmp_path / "expected")
    expected, outcomes = files_of(tmp_path / "expected"), set()
    old = {"config.json": b'{"model_type": "old"}', "old.txt": b"old"} if overwrite else {}
    out = parent / "out"
    for moment in range(1, 10000, step):
        out.mkdir()
        for name, content in old.items():
            (out / name).write_bytes(content)
        code = strike_child(source, parent, overwrite, by_kill, moment)
        assert code in (0, -signal.SIGKILL if by_kill else 7)
        found = files_of(out) if out.exists() else "absent"
        state = "complete" if found == expected else "old" if found == old else found
        assert state in ("complete", "old", "absent"), (moment, sorted(state))
        others = sorted(path for path in parent.iterdir() if path.name != "out")
        if state == "absent" and overwrite:
            assert any(files_of(path) == old for path in others), "the old folder is lost"
            assert any(files_of(path) == expected for path in others), "and the new one is not complete"
        for path in others:
            assert path.name.startswith(("out.incomplete-", "out.replaced-")), path
            # Ctrl-C leaves at most what it interrupted the removal of.
            assert by_kill or (state == "complete" and path.name.startswith("out.replaced-")), (moment, path)
            shutil.rmtree(path)
        shutil.rmtree(out, ignore_errors=True)
        outcomes.add(state)
        if code == 0:
            break
    assert moment > 30 and {"complete", "old"} <= outcomes


@pytest.mark.parametrize("by_kill", [True, False], ids=["kill", "interrupt"])
def test_struck_at_some_moments_the_result_is_complete_or_absent(tmp_path, by_kill):
    strike(tmp_path, overwrite=True, by_kill=by_kill, step=7)


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("by_kill", [True, False], ids=["kill", "interrupt"])
def test_struck_at_every_moment_the_result_is_complete_or_absent(tmp_path, overwrite, by_kill):
    strike(tmp_path, overwrite, by_kill, step=1)


# --- Memory ---


def measured(tmp_path, gigabytes):
    command = [sys.executable, REPOSITORY / "benchmarks" / "convert_memory.py", "--gigabytes", str(gigabytes)]
    subprocess.run([*command, "--out", tmp_path / "memory.json"], check=True, capture_output=True)
    return json.loads((tmp_path / "memory.json").read_text())


@pytest.mark.slow
def test_memory_of_a_small_conversion(tmp_path):
    report = measured(tmp_path, 0.4)
    assert report.keys() == {"command", "commit", "versions", "device", "threads", "results"}
    assert [row["function"] for row in report["results"]] == ["convert_to_wedlm", "convert_to_autoregressive"]
    for row in report["results"]:  # 400 MB in shards of 100; building the model without weights alone takes 50
        assert row["peak_bytes"] - row["peak_bytes_after_imports"] < 2 * row["largest_shard_bytes"]


@pytest.mark.slow
def test_memory_of_a_large_conversion(tmp_path):
    assert_within_bound(measured(tmp_path, 2))


def test_the_recorded_memory_is_within_its_bound():
    assert_within_bound(json.loads((REPOSITORY / "benchmarks" / "results" / "convert_memory.json").read_text()))


def assert_within_bound(report):
    assert len(report["results"]) == 2
    for row in report["results"]:
        assert row["checkpoint_bytes"] > 1.9e9
        assert row["peak_bytes"] < row["largest_shard_bytes"] + 300e6

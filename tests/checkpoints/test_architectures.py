"""Configs of stock checkpoints, there and back, and the configs and weights that are refused."""

import json
import shutil

import pytest
import torch
from helpers import CHECKPOINTS
from qwen_checkpoints import INDEX, assert_refused, config, edit, save_qwen, weights_of
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
)

from wedlm import convert_to_autoregressive, convert_to_wedlm
from wedlm.checkpoints.errors import CheckpointError


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
    """The stock class reads flat fields, yarn, sliding windows and a Qwen2 without head_dim as before."""
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


def layers(number):
    return lambda folder: edit(folder / "config.json", ["layer_types"], num_hidden_layers=number)


def drop(name):
    def change(folder):
        index = json.loads((folder / INDEX).read_text())
        path = folder / index["weight_map"].pop(name)
        save_file({other: tensor for other, tensor in load_file(path).items() if other != name}, path)
        (folder / INDEX).write_text(json.dumps(index))

    return change


def test_refusals_on_the_way_back(source, tmp_path):
    with pytest.raises(CheckpointError, match="of model_type 'qwen3'; supported is a WeDLM checkpoint; without --to-"):
        convert_to_autoregressive(source, tmp_path / "back")
    shutil.copytree(CHECKPOINTS / "q25", tmp_path / "both")
    edit(tmp_path / "both" / "config.json", attention_bias=False)
    with pytest.raises(CheckpointError, match="qk_norm=False and attention_bias=False; Qwen3 has"):
        convert_to_autoregressive(tmp_path / "both", tmp_path / "back")
    with pytest.raises(
        CheckpointError, match="nothing does not exist; give the folder of a checkpoint, or a name on the Hub"
    ):
        convert_to_autoregressive(tmp_path / "nothing", tmp_path / "back")
    assert not (tmp_path / "back").exists()


# --- Refusals ---


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
    "other shapes": (
        config(intermediate_size=64),
        r"down_proj.weight of .* has the shape \[32, 48\], and by its config \[32, 64\]; correct",
    ),
    "other rows": (config(vocab_size=300), r"has the shape \[259, 32\], and by its config \[300, 32\]"),
    "more layers than weights": (layers(3), r"has no weight model.layers.2.*; correct"),
    "more weights than layers": (layers(1), r"has a weight model.layers.1.* no place for"),
    "a missing head": (drop("lm_head.weight"), "has no weight lm_head.weight, which"),
    "a padding id behind the rows": (config(pad_token_id=999), "No model can be built .*correct"),
    "a type that does not exist": (config(dtype="bf16"), "No model can be built .*correct"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_one_sentence_and_nothing_is_written(source, tmp_path, name):
    assert_refused(source, tmp_path, *REFUSED[name])

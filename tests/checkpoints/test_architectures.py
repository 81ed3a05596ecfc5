"""Configs of stock checkpoints, there and back, and the configs and weights that are refused."""

import json

import pytest
import torch
from safetensors.torch import save_file
from stock_checkpoints import CLASSES, INDEX, bits, edit, save_stock, weights_of
from transformers import AutoConfig, AutoModelForCausalLM

from wedlm import WeDLMConfig, WeDLMForCausalLM, convert_to_autoregressive, convert_to_wedlm


def test_a_single_file_and_old_buffers(tmp_path):
    source = tmp_path / "source"
    save_stock(source)
    weights = {**weights_of(source), "model.rotary_emb.inv_freq": torch.ones(())}
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
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    stock = save_stock(source, model_type, rows=300, **windows)
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


LENGTH = 48  # of the texts below, beyond the 32 positions that the scaled models were first trained for
STRETCHED = {"original_max_position_embeddings": 32}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **STRETCHED},
    "longrope": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, **STRETCHED},
}
VARIANTS = {
    **{name: {"rope_scaling": rope, "rope_theta": 5e5, "max_position_embeddings": 40} for name, rope in ROPES.items()},
    "an old name of the type": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "another width of heads": {"head_dim": 12},
    "no number of key-value heads": {"num_key_value_heads": None},
    "one end token": {"eos_token_id": 7, "bos_token_id": 6, "pad_token_id": 5},
    "other numbers": {"rms_norm_eps": 1e-2, "hidden_act": "gelu", "initializer_range": 0.1, "attention_dropout": 0.5},
    "fields of others": {"pretraining_tp": 2, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}},
}


@pytest.mark.parametrize(
    "model_type, variant",
    [*(("llama", name) for name in VARIANTS), ("mistral", "one end token"), ("qwen2", "another width of heads")],
)
def test_other_configs_there_and_back(tmp_path, model_type, variant):
    """The logits and the meaning of config.json, as transformers 4 wrote it, stay as they are."""
    source = tmp_path / "source"
    sizes = {name: value for name, value in VARIANTS[variant].items() if name in ("head_dim", "num_key_value_heads")}
    save_stock(source, model_type, rows=300, **sizes)
    removed = ["rope_parameters", "dtype", *(["head_dim"] if "head_dim" not in sizes else [])]
    edit(source / "config.json", removed, torch_dtype="float32", **VARIANTS[variant])
    notes = convert_to_wedlm(source, tmp_path / "wedlm").notes
    assert len(notes) == (variant == "longrope") and all("rope_type='longrope' is not offered" in n for n in notes)
    converted = AutoConfig.from_pretrained(tmp_path / "wedlm")
    assert (converted.converted_from, converted.qk_norm) == (model_type, False)
    convert_to_autoregressive(tmp_path / "wedlm", tmp_path / "back")
    read = CLASSES[model_type][0].from_pretrained
    assert read(tmp_path / "back").to_dict() == read(source).to_dict()
    assert weights_of(tmp_path / "back").keys() == weights_of(source).keys()
    input_ids = torch.arange(2 * LENGTH).view(2, LENGTH)
    stock, ours, back = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).eval() for name in ("source", "wedlm", "back")
    )
    assert type(stock) is type(back) is CLASSES[model_type][1] and type(ours) is WeDLMForCausalLM
    expected = bits(stock(input_ids).logits)
    assert torch.equal(bits(ours(input_ids).logits), expected)
    assert torch.equal(bits(back(input_ids).logits), expected)


def test_a_wedlm_that_was_never_converted_goes_back_to_the_class_of_its_layers(tmp_path):
    """Checkpoints from before the field converted_from have no such field either."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape = {"num_hidden_layers": 1, "vocab_size": 50, "head_dim": 8}
    for model_type, fields in (
        ("llama", {"qk_norm": False}),
        ("mistral", {"qk_norm": False, "converted_from": "mistral"}),
        ("qwen2", {"qk_norm": False, "attention_bias": True}),
        ("qwen3", {}),
        ("qwen3", {"converted_from": "mistral"}),  # the layers decide
    ):
        folder = tmp_path / "-".join([model_type, *map(str, fields.values())])
        model = WeDLMForCausalLM(WeDLMConfig(**sizes, **shape, **fields)).eval()
        model.save_pretrained(folder / "wedlm")
        if "converted_from" not in fields:
            edit(folder / "wedlm" / "config.json", ["converted_from"])
        convert_to_autoregressive(folder / "wedlm", folder / "back")
        stock = AutoModelForCausalLM.from_pretrained(folder / "back").eval()
        assert type(stock) is CLASSES[model_type][1]
        input_ids = torch.arange(20)[None]
        assert torch.equal(stock(input_ids).logits, model(input_ids).logits)

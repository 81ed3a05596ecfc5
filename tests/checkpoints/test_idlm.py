"""I-DLM's checkpoints: loaded by the Auto classes without their code, and decoded as a causal model."""

import json

import pytest
import torch
from draft_models import tiny_model
from helpers import EOS, MASK, PAD, left_padded, stock_model
from transformers import AutoConfig, AutoModelForCausalLM

import wedlm

EXTRA = {
    "architectures": ["SDARForCausalLM"], "model_type": "sdar", "mask_token_id": MASK, "block_size": 3,
    "fuse_cross_entropy": False, "debug": False,
    "auto_map": {"AutoConfig": "configuration_sdar.C", "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM"},
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    """Weights of random values in their format: Qwen3's names, and a config.json that names code of their own."""
    rope = {"rope_type": "default", "rope_theta": 1e5}
    stock = stock_model(tiny_model(rope_parameters=rope))
    stock.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for written_today in ("rope_parameters", "dtype", "layer_types"):
        del config[written_today]
    older = {"rope_theta": 1e5, "rope_scaling": None, "torch_dtype": "float32", "use_sliding_window": False}
    config |= {**EXTRA, **older, "sliding_window": None, "max_window_layers": 2, "use_regular_causal": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, stock.eval()


def test_it_loads_without_its_code_and_writes_what_a_causal_model_writes(checkpoint):
    folder, stock = checkpoint
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True).eval()
    assert type(model) is wedlm.WeDLMForCausalLM and model.config.mask_shift and model.config.mask_token_id == MASK
    prompt = left_padded([[5, 6, 7, 8], [30, 31]])
    ids = prompt["input_ids"]
    torch.testing.assert_close(model(ids).logits, stock(ids).logits, rtol=1e-4, atol=1e-4)
    arguments = {**prompt, "eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": 24}
    expected = model.generate(**arguments, decoding="autoregressive")
    assert torch.equal(model.generate(**arguments, decoding="verified", query_cost=0), expected)
    with pytest.raises(
        ValueError, match="decoding='streaming' fills MASK tokens, and those .* pass decoding=\"verified"
    ):
        model.generate(**arguments, decoding="streaming")


def test_what_is_saved_is_a_wedlm(checkpoint, tmp_path_factory):
    model, again = AutoModelForCausalLM.from_pretrained(checkpoint[0]).eval(), tmp_path_factory.mktemp("saved")
    model.save_pretrained(again)
    config = AutoConfig.from_pretrained(again)
    assert type(config) is wedlm.WeDLMConfig and (config.model_type, config.mask_shift) == ("wedlm", True)


def test_a_model_whose_blocks_attend_both_ways_is_refused(checkpoint):
    folder, _ = checkpoint
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "use_regular_causal": False}))
    with pytest.raises(ValueError, match=f"{folder} is of model_type 'sdar', .*; pass mask_shift=True if it is one"):
        AutoModelForCausalLM.from_pretrained(folder)
    assert AutoModelForCausalLM.from_pretrained(folder, mask_shift=True).config.mask_shift

"""The config: fields old and new, saving, and checks."""

import json

import pytest
import torch
from helpers import CHECKPOINTS

from wedlm import WeDLMConfig


def rewrite(folder, removed=(), **fields):
    path = folder / "config.json"
    kept = {name: value for name, value in json.loads(path.read_text()).items() if name not in removed}
    path.write_text(json.dumps({**kept, **fields}))
    return folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text((CHECKPOINTS / "q25" / "config.json").read_text())
    return tmp_path


def test_official_config_is_read(checkpoint):
    config = WeDLMConfig.from_pretrained(checkpoint)
    is_qwen3 = checkpoint.name == "q3"
    assert (config.qk_norm, config.attention_bias, config.tie_word_embeddings) == (is_qwen3, not is_qwen3, is_qwen3)
    assert (config.mask_token_id, config.eos_token_id, config.pad_token_id) == (159, 2, 0)
    assert config.head_dim == (16 if is_qwen3 else 12)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}
    assert config.dtype == torch.float32


@pytest.mark.parametrize(
    "old, parameters",
    [
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0},
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
            {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_old_flat_fields_load_and_what_is_saved_loads_again(folder, tmp_path, old, parameters):
    config = WeDLMConfig.from_pretrained(rewrite(folder, torch_dtype="bfloat16", **old))
    assert parameters.items() <= config.rope_parameters.items()
    assert config.dtype == torch.bfloat16
    config.save_pretrained(tmp_path / "saved")
    again = WeDLMConfig.from_pretrained(tmp_path / "saved")
    assert again.to_dict() == config.to_dict()
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert parameters.items() <= saved["rope_parameters"].items()
    assert not {"rope_theta", "rope_scaling", "torch_dtype"} & saved.keys()


def test_no_mask_token_loads_and_is_refused_where_one_is_needed(folder, tmp_path):
    """Nor is head_dim computed where it is missing."""
    config = WeDLMConfig.from_pretrained(rewrite(folder, ["head_dim"], mask_token_id=None))
    assert config.mask_token_id is None and config.head_dim == 128
    config.save_pretrained(tmp_path / "saved")
    assert WeDLMConfig.from_pretrained(tmp_path / "saved").to_dict() == config.to_dict()
    with pytest.raises(ValueError, match=r"mask_token_id is None .* set model\.config\.mask_token_id to the id"):
        config.require_mask_token_id()
    config.mask_token_id = 159
    assert config.require_mask_token_id() == 159
    for mask_token_id in (-1, 160):
        config.mask_token_id = mask_token_id
        message = rf"mask_token_id={mask_token_id} lies outside .* 160 tokens; set it"
        with pytest.raises(ValueError, match=message):
            config.require_mask_token_id()
        with pytest.raises(ValueError, match=message):
            config.save_pretrained(tmp_path / "broken")
        with pytest.raises(ValueError, match=message):
            WeDLMConfig.from_pretrained(rewrite(folder, mask_token_id=mask_token_id))
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("heads", [3, 0])
def test_a_head_count_that_does_not_divide_is_refused(folder, heads):
    with pytest.raises(ValueError, match=rf"num_attention_heads=4 .* num_key_value_heads={heads}; .*correct"):
        WeDLMConfig.from_pretrained(rewrite(folder, num_key_value_heads=heads))

"""The fingerprint of a base: all of its weights count, and neither their files nor the dtype they are loaded in do."""

import json

import pytest
import torch
from draft_models import tiny_model, with_adapter
from safetensors.torch import load_file, save_file
from stock_checkpoints import TOKENS, save_stock
from transformers import AutoModelForCausalLM

from wedlm import WeDLMForCausalLM, convert_to_wedlm
from wedlm.checkpoints.attach import fingerprint_on_disk
from wedlm.checkpoints.fingerprint import fingerprint


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_every_weight_counts(tied):
    model = tiny_model("qwen2", tie_word_embeddings=tied)
    seen = {fingerprint(model).weights}
    for weight in model.parameters():
        before = weight.clone()
        weight[-1] *= 1.01
        seen.add(fingerprint(model).weights)
        weight.copy_(before)
    assert len(seen) == 1 + len(list(model.parameters()))
    assert fingerprint(model).weights in seen
    norm = model.model.layers[1].input_layernorm.weight
    before, _ = norm.clone(), norm.add_(0.5)
    assert fingerprint(model).signs == fingerprint(tiny_model("qwen2", tie_word_embeddings=tied)).signs
    norm.copy_(before)
    assert fingerprint(model) == fingerprint(tiny_model("qwen2", tie_word_embeddings=tied))


@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
@pytest.mark.parametrize(("rows", "tied"), [(TOKENS + 5, False), (TOKENS, True), (TOKENS, False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_neither_files_nor_conversion_nor_dtype_count(model_type, rows, tied, dtype, tmp_path):
    save_stock(tmp_path / "stock", model_type, rows=rows, tied=tied, dtype=dtype)
    convert_to_wedlm(tmp_path / "stock", tmp_path / "wedlm")
    expected = fingerprint_on_disk(tmp_path / "stock")
    assert None not in expected and fingerprint_on_disk(tmp_path / "wedlm") == expected
    for loaded in (torch.float32, torch.bfloat16, torch.float64):
        model = WeDLMForCausalLM.from_pretrained(tmp_path / "wedlm", dtype=loaded)
        assert fingerprint(model) == expected
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "stock")
    if dtype != torch.float16:
        assert fingerprint(stock) == expected
    stock.save_pretrained(tmp_path / "one file")
    assert fingerprint_on_disk(tmp_path / "one file") == expected
    # The rounding to float16 cannot be undone, so there only the signs are compared.
    assert fingerprint(model.half()) == (expected.signs, None)


def test_adapters_in_a_model_do_not_count():
    assert fingerprint(with_adapter(tiny_model()).get_base_model()) == fingerprint(tiny_model())


def test_a_change_of_some_projections_on_disk_is_seen(tmp_path):
    """Of those that PEFT changes by default, which leave every sign in the first rows of down_proj as it is."""
    save_stock(tmp_path, "llama")
    before = fingerprint_on_disk(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        changed = {
            name: tensor * 1.5 if "q_proj" in name or "v_proj" in name else tensor
            for name, tensor in load_file(file).items()
        }
        save_file(changed, file, {"format": "pt"})
    after = fingerprint_on_disk(tmp_path)
    assert after.signs == before.signs and after.weights != before.weights


def test_an_adapter_of_an_earlier_version_is_compared_by_signs(tmp_path):
    with_adapter(tiny_model()).save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    fields = json.loads(path.read_text())
    del fields["base_weights"]
    path.write_text(json.dumps(fields))
    loaded = tiny_model()
    loaded.load_adapter(tmp_path)
    with pytest.raises(ValueError, match="base_fingerprint='.*' of the draft adapter is not that of this model"):
        tiny_model(seed=7).load_adapter(tmp_path)

"""The fingerprint of a base: all of its weights count, and neither their files nor the dtype they are loaded in do."""

import json

import pytest
import torch
from draft_models import tiny_model, with_adapter
from stock_checkpoints import TOKENS, save_stock
from transformers import AutoModelForCausalLM

from wedlm import WeDLMForCausalLM, convert_to_wedlm
from wedlm.checkpoints.architectures import read_wedlm_config
from wedlm.checkpoints.fingerprint import fingerprint, fingerprint_of_files
from wedlm.checkpoints.shards import read_json, read_shards


def fingerprint_on_disk(folder):
    config = read_wedlm_config(read_json(folder / "config.json"), folder)
    return fingerprint_of_files(read_shards(folder), config)


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_every_weight_counts(tied):
    model = tiny_model("qwen2", tie_word_embeddings=tied)
    seen = {fingerprint(model)}
    for weight in model.parameters():
        before = weight.clone()
        weight[-1] *= 1.01  # no sign changes
        seen.add(fingerprint(model))
        weight.copy_(before)
    assert len({each.weights for each in seen}) == 1 + len(list(model.parameters()))
    assert {each.signs for each in seen} == {fingerprint(model).signs}
    assert fingerprint(model) == fingerprint(tiny_model("qwen2", tie_word_embeddings=tied)) in seen


@pytest.mark.parametrize(
    ("model_type", "rows", "tied", "dtype"),
    [
        ("qwen2", TOKENS + 5, False, torch.float32),
        ("llama", TOKENS, True, torch.bfloat16),
        ("qwen3", TOKENS, False, torch.float16),
    ],
)
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


def test_an_adapter_of_an_earlier_version_is_compared_by_signs(tmp_path):
    with_adapter(tiny_model()).save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    fields = json.loads(path.read_text())
    del fields["base_weights"]
    path.write_text(json.dumps(fields))
    tiny_model().load_adapter(tmp_path)
    with pytest.raises(ValueError, match="base_fingerprint='.*' of the draft adapter is not that of this model"):
        tiny_model(seed=7).load_adapter(tmp_path)

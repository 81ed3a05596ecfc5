"""Merging an adapter into its checkpoint."""

import json

import pytest
import torch
from draft_models import save_adapter
from peft import PeftModel
from training_runs import run
from transformers import AutoModelForCausalLM

from wedlm.checkpoints.errors import CheckpointError
from wedlm.training.merge import merge_adapter


def test_a_merged_checkpoint_is_the_base_with_the_adapter(place, lora_run, merge):
    """It loads without the package: test_train.py has all folders that must."""
    assert merge.result.exit_code == 0 and "Written to" in merge.result.stdout
    base = AutoModelForCausalLM.from_pretrained(place / "model")
    assert json.loads((merge.folder / "config.json").read_text())["mask_trained"]
    whole = AutoModelForCausalLM.from_pretrained(merge.folder).eval()
    mask = base.config.mask_token_id
    rows = (whole.model.embed_tokens.weight != base.model.embed_tokens.weight).any(-1).nonzero().flatten()
    assert rows.tolist() == [mask]
    with_adapter = PeftModel.from_pretrained(base, lora_run).eval()
    input_ids = torch.tensor([[3, 4, 5, mask, mask]])
    torch.testing.assert_close(whole(input_ids).logits, with_adapter(input_ids).logits, rtol=1e-4, atol=1e-4)


def test_an_adapter_finds_its_checkpoint_from_another_folder(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    out = run(place, tmp_path / "adapter", "lora", model="model", lora_r=4, max_steps=1)
    for folder in (out, out / "checkpoint-1"):
        base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        assert base == str(place / "model")
    monkeypatch.chdir(tmp_path)
    assert (merge_adapter("adapter", "merged") / "model.safetensors").exists()


@pytest.mark.slow
def test_qlora_and_merge(place, tmp_path):
    out = run(place, tmp_path / "out", "qlora", lora_r=4)
    report = json.loads((out / "training_report.json").read_text())
    assert 0 < report["train"]["loss"] < 20
    AutoModelForCausalLM.from_pretrained(merge_adapter(str(out), tmp_path / "merged"))


@pytest.mark.parametrize(
    ("base", "fields", "sentence"),
    [
        (None, {}, "is not an adapter of PEFT"),
        ("gone", {}, "was trained on, cannot be loaded"),
        ("model", {}, r"adapter cannot be merged \(.*; train or copy it again"),  # it has no weights
        ("model", {"r": "a"}, r"adapter cannot be merged \(.*; train or copy it again"),
    ],
)
def test_a_merge_that_cannot_be(tmp_path, place, base, fields, sentence):
    (tmp_path / "adapter").mkdir()
    if base is not None:
        config = {"peft_type": "LORA", "base_model_name_or_path": str(place / base), **fields}
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=sentence):
        merge_adapter(str(tmp_path / "adapter"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_draft_adapter_is_not_merged(place, tmp_path):
    adapter = save_adapter(tmp_path / "adapter", base=place / "model")
    with pytest.raises(CheckpointError, match="adapter is a draft adapter, which cannot be merged: .* as MODEL"):
        merge_adapter(str(adapter), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()

"""A draft adapter in the model itself: its predictions are those of PEFT's form, and what does not fit is refused."""

import json

import pytest
import torch
from draft_models import FLAVOURS, save_adapter, tiny_model
from helpers import MASK, random_tokens, run_python
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.attach import attach_adapter
from wedlm.checkpoints.errors import CheckpointError

IDS = torch.cat([random_tokens(2, 6), torch.full((2, 3), MASK)], dim=1)


@torch.no_grad()
def logits(model, input_ids=IDS):
    return model(input_ids=input_ids).logits


def attached(model, folder):
    attach_adapter(model, folder)
    return model


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_both_forms_agree(flavour, tmp_path):
    folder = save_adapter(tmp_path, flavour)
    base, model = tiny_model(flavour), attached(tiny_model(flavour), folder)
    assert torch.equal(logits(model)[:, :6], logits(base)[:, :6])
    expected = logits(PeftModel.from_pretrained(tiny_model(flavour), folder))
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(model)[:, 6:], logits(base)[:, 6:], atol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_adapter_takes_the_type_of_the_model(dtype, tmp_path):
    model = attached(tiny_model().to(dtype), save_adapter(tmp_path))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype} == {logits(model).dtype}


def test_an_adapter_of_some_layers(tmp_path):
    folder = save_adapter(tmp_path, target_modules=["q_proj", "down_proj"])
    model = attached(tiny_model(), folder)
    assert model.config.drafts == {"rank": 4, "modules": ["down_proj", "q_proj"]}
    expected = logits(PeftModel.from_pretrained(tiny_model(), folder))
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)


def test_a_quantized_base_takes_an_adapter_of_the_whole_one(tmp_path):
    tiny_model(hidden_size=64, intermediate_size=64, head_dim=32).save_pretrained(tmp_path / "base")
    folder = save_adapter(tmp_path / "adapter", base=tmp_path / "base")
    quantized = BitsAndBytesConfig(load_in_4bit=True)
    models = [
        WeDLMForCausalLM.from_pretrained(tmp_path / "base", quantization_config=quantized).eval() for _ in range(3)
    ]
    # (One that has decoded takes no adapter: bitsandbytes 0.50 has packed its weights for some CPUs then.)
    base = logits(models[0])
    expected = logits(PeftModel.from_pretrained(models[1], folder))
    got = logits(attached(models[2], folder))
    assert torch.equal(got[:, :6], base[:, :6])
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)


def test_saved_with_its_adapter_the_model_is_the_same(tmp_path):
    model = attached(tiny_model("llama tied"), save_adapter(tmp_path / "adapter", "llama tied"))
    model.save_pretrained(tmp_path / "whole")
    loaded = WeDLMForCausalLM.from_pretrained(tmp_path / "whole").eval()
    assert loaded.config.drafts == model.config.drafts
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.full
def test_a_model_with_its_adapter_loads_without_the_package(tmp_path):
    model = attached(tiny_model(), save_adapter(tmp_path / "adapter"))
    model.save_pretrained(tmp_path / "whole")
    prompt = random_tokens(1, 6)
    text = model.generate(prompt, max_new_tokens=8, decoding="verified")
    torch.save({"ids": IDS, "logits": logits(model), "prompt": prompt, "text": text}, tmp_path / "expected.pt")
    code = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("whole", trust_remote_code=True).eval()
expected = torch.load("expected.pt")
with torch.no_grad():
    assert torch.equal(model(expected["ids"]).logits, expected["logits"])
assert torch.equal(model.generate(expected["prompt"], max_new_tokens=8, decoding="verified"), expected["text"])
print("equal")
"""
    assert "equal" in run_python(code, tmp_path, wedlm=False)


# --- Refusals ---


def without(name):
    def change(folder):
        tensors = load_file(folder / "adapter_model.safetensors")
        tensors.pop(name)
        save_file(tensors, folder / "adapter_model.safetensors")

    return change


def with_fields(**fields):
    def change(folder):
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def not_finite(folder):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors["base_model.model.model.embed_tokens.lora_mask.weight"][0] = float("nan")
    save_file(tensors, path)


def unreadable(folder):
    (folder / "adapter_model.safetensors").write_bytes(b"nothing")


BROKEN = {
    "weights missing": (
        without("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"),
        "layers.0.mlp.drafts.up_proj.down is in one of them only, 1 such weights in all",
    ),
    "MASK missing": (without("base_model.model.model.embed_tokens.lora_mask.weight"), "mask_embedding is in one of"),
    "another rank": (with_fields(r=2), r"has the shape \(4, 32\) and should have \(2, 32\)"),
    "other layers": (with_fields(target_modules=["q_proj"]), "is in one of them only"),
    "no rank": (with_fields(r=None), "r=None in .* is not an integer from 1 to 65536"),
    "rank 0": (with_fields(r=0), "r=0 in .* is not an integer from 1"),
    "rank -1": (with_fields(r=-1), "r=-1 in .* is not an integer from 1"),
    "a rank beyond memory": (with_fields(r=10**20), "r=1.* in .* is not an integer from 1"),
    "no number": (with_fields(lora_alpha=float("nan")), "lora_alpha=nan in .* is not a finite number"),
    "no names": (with_fields(target_modules=5), "target_modules=5 in .* is not a list of names"),
    "not finite": (not_finite, "mask_embedding holds values that are not finite, 1 such weights in all"),
    "another kind": (with_fields(peft_type="LORA"), "its peft_type is 'LORA', that of draft adapters 'WEDLM_DRAFT'"),
    "another base": (with_fields(base_fingerprint="0"), "base_fingerprint='0' of the draft adapter is not that of"),
    "no file": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "No such file"),
    "no safetensors": (unreadable, "header"),
    "no JSON": (lambda folder: (folder / "adapter_config.json").write_text("{"), "cannot be read as JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_adapter_that_does_not_fit_leaves_the_model_as_it_is(name, tmp_path):
    change, sentence = BROKEN[name]
    change(save_adapter(tmp_path))
    model = tiny_model()
    with pytest.raises(CheckpointError, match=f"cannot be used as a draft adapter of this model .*{sentence}"):
        attach_adapter(model, tmp_path)
    assert model.config.drafts is None and torch.equal(logits(model), logits(tiny_model()))


def test_models_that_cannot_have_an_adapter(tmp_path):
    folder = save_adapter(tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="is not that of this model"):
        attach_adapter(tiny_model(seed=7), folder)
    without_mask = tiny_model()
    without_mask.config.mask_token_id = None
    with pytest.raises(CheckpointError, match="mask_token_id is None"):
        attach_adapter(without_mask, folder)
    with pytest.raises(CheckpointError, match="has a draft adapter already; load its base anew"):
        attach_adapter(attached(tiny_model(), folder), folder)
    with torch.device("meta"):
        empty = WeDLMForCausalLM(tiny_model().config)
    with pytest.raises(CheckpointError, match="some weights of the model are not in memory"):
        attach_adapter(empty, folder)

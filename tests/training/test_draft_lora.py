"""Draft adapters as adapters of PEFT: files, several adapters in a model, and the refusals."""

import copy
import json
import pickle

import pytest
import torch
from draft_models import save_adapter, tiny_model, with_adapter
from helpers import MASK, random_tokens
from peft import PeftConfig, PeftModel, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig

from wedlm import DraftLoraConfig, WeDLMForCausalLM
from wedlm.checkpoints.fingerprint import fingerprint
from wedlm.modeling_wedlm.drafts import MaskedLinear
from wedlm.training.draft_lora import DRAFT_LORA, LAYERS

IDS = torch.cat([random_tokens(2, 6), torch.full((2, 3), MASK)], dim=1)


@torch.no_grad()
def logits(model, input_ids=IDS):
    return model(input_ids=input_ids).logits


@pytest.fixture
def folder(tmp_path):
    return save_adapter(tmp_path / "adapter")


# --- Files ---


@pytest.mark.parametrize("flavour", ["qwen2", "llama tied"])
def test_a_saved_adapter_loads_into_its_base(flavour, tmp_path):
    base = logits(tiny_model(flavour))
    adapted = with_adapter(tiny_model(flavour))
    adapted.save_pretrained(tmp_path)
    of_transformers = tiny_model(flavour)
    of_transformers.load_adapter(tmp_path)
    for loaded in (PeftModel.from_pretrained(tiny_model(flavour), tmp_path), of_transformers):
        assert torch.equal(logits(loaded), logits(adapted))
        assert torch.equal(logits(loaded)[:, :6], base[:, :6])
        assert not torch.allclose(logits(loaded)[:, 6:], base[:, 6:], atol=0.1)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_an_adapted_model_is_one(copied):
    adapted = with_adapter(tiny_model())
    twin = copied(adapted)
    assert torch.equal(logits(twin), logits(adapted))
    assert [type(layer) for layer in twin.modules()] == [type(layer) for layer in adapted.modules()]
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    assert logits(adapted).any(), "the copy has weights of its own"


def test_an_adapter_is_small_and_names_its_base_and_its_kind(tmp_path):
    tiny_model().save_pretrained(tmp_path / "base")
    folder = save_adapter(tmp_path / "adapter", base=tmp_path / "base")
    fields = json.loads((folder / "adapter_config.json").read_text())
    assert fields["peft_type"] == "WEDLM_DRAFT" and fields["task_type"] == "CAUSAL_LM"
    assert fields["base_model_name_or_path"] == str(tmp_path / "base")
    assert (fields["base_fingerprint"], fields["base_weights"]) == fingerprint(tiny_model())
    assert sorted(fields["target_modules"]) == sorted(LAYERS)
    names = load_file(folder / "adapter_model.safetensors").keys()
    assert len(names) == 2 * 2 * len(LAYERS) + 1 and "base_model.model.model.embed_tokens.lora_mask.weight" in names


def test_peft_without_the_package_refuses_a_draft_adapter(folder, monkeypatch):
    """Without it PEFT knows no such type."""
    monkeypatch.delitem(PEFT_TYPE_TO_CONFIG_MAPPING, DRAFT_LORA)
    with pytest.raises(KeyError, match="WEDLM_DRAFT"):
        PeftConfig.from_pretrained(folder)


# --- Several adapters, none, and training ---


def test_two_adapters_are_switched_disabled_and_removed(tmp_path):
    folders = [save_adapter(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    alone = [logits(PeftModel.from_pretrained(tiny_model(), folder)) for folder in folders]
    assert not torch.allclose(alone[0], alone[1], atol=0.1)
    base = logits(tiny_model())
    model = PeftModel.from_pretrained(tiny_model(), folders[0])
    model.load_adapter(folders[1], adapter_name="other")
    assert torch.equal(logits(model), alone[0])
    model.set_adapter("other")
    assert torch.equal(logits(model), alone[1])
    with model.disable_adapter():
        assert torch.equal(logits(model), base)
    assert torch.equal(logits(model), alone[1])
    model.set_adapter("default")
    assert torch.equal(logits(model), alone[0])
    model.delete_adapter("other")
    assert torch.equal(logits(model), alone[0])
    assert torch.equal(logits(model.unload()), base)


def test_a_quantized_base_takes_an_adapter(tmp_path):
    tiny_model(hidden_size=64, intermediate_size=64, head_dim=32).save_pretrained(tmp_path / "base")
    quantized = BitsAndBytesConfig(load_in_4bit=True)
    model = WeDLMForCausalLM.from_pretrained(tmp_path / "base", quantization_config=quantized).eval()
    assert fingerprint(model) == (None, None)
    base = logits(model)
    adapted = with_adapter(model)
    assert torch.equal(logits(adapted)[:, :6], base[:, :6])
    assert not torch.allclose(logits(adapted)[:, 6:], base[:, 6:], atol=0.1)
    torch.testing.assert_close(logits(adapted), logits(adapted.train()))


# --- Refusals ---


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"use_dora": True}, "use_dora=True is not supported by draft adapters"),
        ({"layers_to_transform": 0}, "layers_to_transform=0 is not supported by draft adapters"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' would change the base"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules={'lm_head'} are not linear layers"),
        ({"target_modules": "q.*"}, "target_modules='q.*' are not linear layers"),
        ({"target_modules": []}, "are not linear layers of the decoder layers; pass some of q_proj, k_proj"),
    ],
)
def test_settings_that_a_draft_adapter_cannot_have(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        DraftLoraConfig(**fields)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model: model.merge_and_unload(), "A draft adapter cannot be merged: .*; keep the adapter as it is"),
        (lambda model: model.merge_adapter(), "A draft adapter cannot be merged"),
        (lambda model: model.add_weighted_adapter(["default"], [1.0], "both"), "cannot be combined into one; choose"),
        (lambda model: model(input_ids=IDS, adapter_names=["other"] * 2), "adapter_names is not supported .*set_adap"),
    ],
)
def test_what_adapters_of_peft_can_and_a_draft_adapter_cannot(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(with_adapter(tiny_model()))


def test_models_that_cannot_have_a_draft_adapter():
    without_mask = tiny_model()
    without_mask.config.mask_token_id = None
    with pytest.raises(ValueError, match="mask_token_id is None .*; set model.config.mask_token_id"):
        get_peft_model(without_mask, DraftLoraConfig())
    with pytest.raises(ValueError, match="contains a draft adapter already; load its base"):
        get_peft_model(tiny_model(drafts={"rank": 2, "modules": ["q_proj"]}), DraftLoraConfig())


def test_another_base_is_refused(folder):
    with pytest.raises(ValueError, match="base_fingerprint='.*' of the draft adapter is not that of this model"):
        PeftModel.from_pretrained(tiny_model(seed=7), folder)
    PeftModel.from_pretrained(tiny_model().bfloat16(), folder)


CHANGES = {
    "missing": lambda tensors: tensors.pop(max(tensors)),
    "renamed": lambda tensors: tensors.update(elsewhere=tensors.pop(min(tensors))),
    "empty": lambda tensors: tensors.clear(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_does_not_fit_is_refused(change, folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    CHANGES[change](tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="The draft adapter and the model do not fit together: .*; load the adapter"):
        PeftModel.from_pretrained(tiny_model(), folder)
    model = with_adapter(tiny_model())
    with pytest.raises(ValueError, match="do not fit together"):
        model.load_adapter(folder, adapter_name="other")
    if change in ("missing", "renamed"):
        with pytest.raises(ValueError, match="adapter .* does not fit this model: .*; load the adapter of this model"):
            tiny_model().load_adapter(folder)


# --- Decoding ---


@pytest.mark.parametrize(
    ("base", "adapter", "tolerance"),
    [
        (torch.float32, torch.float32, 1e-5),
        (torch.bfloat16, torch.float32, 0.03),
        (torch.bfloat16, torch.bfloat16, 0.05),
    ],
)
def test_decoding_computes_the_products_of_peft(base, adapter, tolerance):
    """A model that trains takes PEFT's own forward; without dropout it computes the same."""
    model = with_adapter(tiny_model().to(base))
    if adapter == base:
        model = model.to(base)
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert (layer.base_layer.weight.dtype, layer.lora_A["default"].weight.dtype) == (base, adapter)
    expected = logits(model.train())
    differences = (logits(model.eval()) - expected).abs()
    assert differences.max() < tolerance * expected.abs().max()
    assert (expected - logits(tiny_model().to(base))).abs().max() > 0.2 * expected.abs().max()


def test_text_alone_takes_no_detour(monkeypatch):
    """Without MASK in the input neither PEFT's layers nor the products run, except where gradients are wanted."""
    model, calls = with_adapter(tiny_model()), []
    forward = MaskedLinear.forward
    monkeypatch.setattr(MaskedLinear, "forward", lambda *given: calls.append(1) or forward(*given))
    text = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        model(text)
        assert not calls
        model(torch.tensor([[5, 6, MASK]]))
        assert len(calls) == len(LAYERS) * model.config.num_hidden_layers
    model(text)
    assert len(calls) == 2 * len(LAYERS) * model.config.num_hidden_layers

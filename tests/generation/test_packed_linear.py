"""Weights packed for a CPU: the same products and the same texts, and a refusal of all that needs the weights."""

import copy

import pytest
import torch
from draft_models import FLAVOURS, drafted, tiny_model, with_adapter
from helpers import MASK, left_padded, logits_of, random_tokens, run_python, stock_model
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import linear
from transformers import CompileConfig

from wedlm.generation import packed_linear
from wedlm.generation.packed_linear import PackedLinear, pack_linear_layers, why_not_packed
from wedlm.generation.step_costs import EXPERIENCE, experience_with

if not torch.backends.mkldnn.is_available():
    pytest.skip("torch has no oneDNN", allow_module_level=True)
DTYPES = [torch.float32, *([torch.bfloat16] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else [])]
PROMPTS = [row.tolist() for row in random_tokens(3, 9)]


@pytest.fixture(autouse=True)
def small_layers_are_packed(monkeypatch):
    monkeypatch.setattr(packed_linear, "SMALLEST", 200)  # of the tiny model all but the layers of an adapter


def texts(model, prompts=PROMPTS, **arguments):
    return model.generate(**left_padded(prompts), max_new_tokens=24, do_sample=False, **arguments).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 9), (1, 130), (0,)], ids=str)
def test_a_product_is_that_of_the_layer(dtype, bias, shape):
    torch.manual_seed(0)
    layer = nn.Linear(48, 96, bias=bias, dtype=dtype)
    inputs = torch.randn(*shape, 48, dtype=dtype)
    wanted = linear(inputs.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    packed = PackedLinear(layer)
    with torch.no_grad():
        got = packed(inputs)
    assert got.dtype == dtype and got.shape == wanted.shape
    bounds = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(got.double(), wanted, **bounds)
    assert str(packed) == f"PackedLinear(in_features=48, out_features=96, bias={bias})"


def test_inputs_may_lie_in_any_order():
    layer = nn.Linear(48, 96)
    wide, turned = torch.randn(2, 7, 60)[..., :48], torch.randn(48, 5).t()
    with torch.no_grad():
        for inputs in (wide, turned):
            torch.testing.assert_close(PackedLinear(layer)(inputs), layer(inputs))


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_model_predicts_the_same(flavour):
    model = tiny_model(flavour)
    tokens = random_tokens(1, 12)[0].tolist()
    wanted = logits_of(model)(tokens, list(range(12)))
    assert model.pack_for_cpu() is model and not model.training
    torch.testing.assert_close(logits_of(model)(tokens, list(range(12))), wanted, rtol=1e-4, atol=1e-4)
    kinds = {type(layer) for layer in model.modules() if hasattr(layer, "in_features")}
    assert kinds == {PackedLinear}, "every linear layer is packed, the head too"
    assert model.get_input_embeddings().weight.shape == (160, 32), "which a tied head has left alone"


@pytest.mark.parametrize("flavour", ["qwen2", "qwen3", "llama tied"])
@pytest.mark.parametrize("decoding", ["verified", "streaming", "blockwise"])
def test_texts_stay_the_same(flavour, decoding):
    model = tiny_model(flavour)
    alone, by_token = texts(model, decoding=decoding), texts(model, decoding="autoregressive")
    model.pack_for_cpu()
    assert texts(model, decoding=decoding) == alone
    assert texts(model, decoding="autoregressive") == by_token
    assert (alone == by_token) or decoding != "verified"


@pytest.mark.parametrize("make", [drafted, lambda: with_adapter(tiny_model())], ids=["in the model", "of PEFT"])
def test_an_adapter_drafts_as_before(make):
    model = make()
    where = {"input_ids": torch.tensor([[5, 6, 7, MASK, MASK]])}
    with torch.no_grad():
        wanted, text = model(**where).logits, texts(model, decoding="verified", window_size=4)
        model.pack_for_cpu()
        torch.testing.assert_close(model(**where).logits, wanted, rtol=1e-3, atol=1e-3)
    assert texts(model, decoding="verified", window_size=4) == text
    assert texts(model, decoding="autoregressive") == text


def test_small_and_quantized_layers_stay(monkeypatch):
    monkeypatch.setattr(packed_linear, "SMALLEST", 32 * 48)
    model = tiny_model()
    model.model.layers[0].mlp.up_proj.__class__ = type("Quantized", (nn.Linear,), {})
    model.pack_for_cpu()
    first, second = model.model.layers
    assert isinstance(second.mlp.up_proj, PackedLinear) and isinstance(model.lm_head, PackedLinear)
    assert type(first.mlp.up_proj).__name__ == "Quantized" and type(first.self_attn.q_proj) is nn.Linear


def test_a_model_of_transformers_is_packed_too():
    stock = stock_model(tiny_model("qwen2"))
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        wanted = stock(tokens).logits
        pack_linear_layers(stock)
        torch.testing.assert_close(stock(tokens).logits, wanted, rtol=1e-4, atol=1e-4)
    assert any(isinstance(layer, PackedLinear) for layer in stock.modules())


def test_autocast_leaves_packed_weights_their_dtype():
    layer = nn.Linear(48, 96)
    inputs = torch.randn(3, 48, dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = layer(inputs.float())
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(PackedLinear(layer)(inputs), wanted)


def test_a_packed_model_no_longer_trains():
    assert not any(layer.training for layer in tiny_model().train().pack_for_cpu().modules())


def test_packing_twice_is_packing_once():
    model = tiny_model().pack_for_cpu()
    layers = list(model.modules())
    assert list(model.pack_for_cpu().modules()) == layers


def test_the_costs_of_steps_are_learned_anew():
    model = tiny_model()
    before = experience_with(model)
    assert experience_with(model) is before
    model.pack_for_cpu()
    assert model not in EXPERIENCE and experience_with(model) is not before


@pytest.mark.parametrize(
    ("done", "change"),
    [
        ("trained", lambda model, _: model.train()),
        ("saved", lambda model, folder: model.save_pretrained(folder / "out")),
        ("saved", lambda model, _: model.state_dict()),
        ("saved", lambda model, _: model.model.state_dict()),
        ("moved or cast", lambda model, _: model.to(torch.bfloat16)),
        ("moved or cast", lambda model, _: model.to("meta")),
        ("copied", lambda model, _: copy.deepcopy(model)),
        ("resized", lambda model, _: model.resize_token_embeddings(200)),
        ("given an adapter", lambda model, _: with_adapter(model)),
    ],
)
def test_what_needs_the_weights_is_refused(tmp_path, done, change):
    model = tiny_model()
    text = texts(model)
    model.pack_for_cpu()
    with pytest.raises(ValueError) as refused:
        change(model, tmp_path)
    assert str(refused.value) == (
        f"The weights of this model are packed for decoding on a CPU, so it cannot be {done}; do that before "
        "pack_for_cpu(), or load it again."
    )
    assert list(tmp_path.iterdir()) == [] and not model.training and texts(model) == text, "nothing has changed"


@pytest.mark.parametrize(
    ("done", "change"),
    [
        ("trained", lambda stock: stock.train()),
        ("moved or cast", lambda stock: stock.to(torch.bfloat16)),
        ("saved", lambda stock: stock.state_dict()),
        ("copied", lambda stock: copy.deepcopy(stock)),
    ],
)
def test_a_packed_model_of_transformers_refuses_too(done, change):
    stock = stock_model(tiny_model("qwen2"))
    pack_linear_layers(stock)
    with pytest.raises(ValueError, match=f"it cannot be {done}; do that before"):
        change(stock)


def test_a_packed_model_has_no_backward_pass():
    model, tokens = tiny_model().pack_for_cpu(), torch.tensor([[5, 6, 7]])
    loss = model(tokens, labels=tokens).loss
    with pytest.raises(ValueError, match="so it cannot be trained; do that before pack_for_cpu"):
        loss.backward()
    with torch.no_grad():
        assert model(tokens, labels=tokens).loss == loss


def test_layers_of_a_lora_stay():
    """PEFT reads their weights in each forward."""
    model = get_peft_model(tiny_model(), LoraConfig(r=16, target_modules=["up_proj"], init_lora_weights=False)).eval()
    tokens = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        wanted = model(tokens).logits
        pack_linear_layers(model)
        torch.testing.assert_close(model(tokens).logits, wanted, rtol=1e-4, atol=1e-4)
    lora = model.base_model.model.model.layers[0].mlp.up_proj
    assert isinstance(lora.base_layer, PackedLinear) and type(lora.lora_A["default"]) is nn.Linear
    assert lora.lora_A["default"].weight.numel() >= packed_linear.SMALLEST


@pytest.mark.parametrize("backend", ["inductor", "eager"])
def test_static_steps_are_compiled_by_the_eager_backend_alone(backend):
    model = tiny_model()
    asked = {"decoding": "verified", "cache_implementation": "static"}
    text = texts(model, **asked)
    asked |= {"compile_config": CompileConfig(backend=backend, mode=None)}
    model.pack_for_cpu()
    if backend == "eager":
        assert texts(model, **asked) == text
    else:
        with pytest.raises(ValueError, match=r"the backend 'inductor', and the weights .* leave compile_config out"):
            texts(model, **asked)


def test_what_changes_nothing_is_allowed():
    model = tiny_model().pack_for_cpu()
    assert model.to("cpu").to(torch.float32).float().cpu().eval() is model


def test_a_model_that_is_not_packed_moves_as_before(tmp_path):
    model = tiny_model()
    assert model.train().training and model.to(torch.bfloat16).dtype == torch.bfloat16
    model.save_pretrained(tmp_path / "out")
    assert copy.deepcopy(model).to("meta").device.type == "meta"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda model: model.double(),
            "pack_for_cpu() takes weights in torch.float32 or torch.bfloat16 on this CPU, and these are in "
            "torch.float64; load the model with another dtype, or leave the call out.",
        ),
        (
            lambda model: model.model.layers.to("meta"),
            "pack_for_cpu() needs whole weights on a CPU, and model.layers.0.self_attn.q_proj.weight is elsewhere, "
            "in parts or quantized; leave the call out.",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(monkeypatch, change, message):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    model = tiny_model()
    change(model)
    assert why_not_packed(model) == message
    with pytest.raises(ValueError) as refused:
        model.pack_for_cpu()
    assert str(refused.value) == message and not any(isinstance(layer, PackedLinear) for layer in model.modules())


def test_weights_in_parts_are_refused():
    """As those of a DTensor, which is a subclass of torch.Tensor."""
    model, part = tiny_model(), type("Part", (torch.Tensor,), {})
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().as_subclass(part))
    assert why_not_packed(model).startswith("pack_for_cpu() needs whole weights on a CPU, and lm_head.weight is")


def test_a_cpu_without_bfloat16_is_told(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert why_not_packed(tiny_model()) is None
    assert why_not_packed(tiny_model().bfloat16()).startswith(
        "pack_for_cpu() takes weights in torch.float32 on this CPU"
    )


def test_a_torch_without_onednn_is_told(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert why_not_packed(tiny_model()) == (
        "pack_for_cpu() needs a torch with oneDNN, which this one lacks; leave the call out."
    )


@pytest.mark.full
def test_the_code_of_a_checkpoint_packs_as_well(tmp_path):
    model = tiny_model(hidden_size=256, intermediate_size=512)
    model.save_pretrained(tmp_path / "saved")
    run_python(
        """
import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("saved", trust_remote_code=True)
prompt = torch.tensor([[5, 6, 7]])
text = model.generate(prompt, max_new_tokens=12, decoding="verified").tolist()
assert model.pack_for_cpu().generate(prompt, max_new_tokens=12, decoding="verified").tolist() == text
assert type(model.model.layers[0].mlp.up_proj).__name__ == "PackedLinear"
""",
        tmp_path,
        wedlm=False,
    )

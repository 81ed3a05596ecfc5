"""A model whose weights lie in blocks is that of the numbers in them, however it is used."""

import pickle
import sys
from copy import deepcopy

import pytest
import torch
from draft_models import drafted, tiny_model, with_adapter
from fused_models import assert_close, logits, stock
from gguf import GGMLQuantizationType, dequantize, quantize
from gguf_files import random_blocks
from helpers import MASK, left_padded, random_tokens
from peft import LoraConfig, PeftModel, get_peft_model
from stock_checkpoints import files_of
from torch import nn

from wedlm import fuse, unfuse
from wedlm.fused.blocks import Packed
from wedlm.fused.model import ROUNDED, product_of
from wedlm.fused.native import SET
from wedlm.fused.packed import PackedEmbedding, PackedLinear

PROMPTS = [row.tolist() for row in random_tokens(3, 9)]
WITH_MASKS = random_tokens(2, 7)
WITH_MASKS[:, -2:] = MASK
MANY = WITH_MASKS.repeat(1, 6)  # more rows than C takes
WIDE = {"intermediate_size": 64}  # a block has 32 weights of a row
MODELS = {
    "qwen2 tied": lambda: tiny_model("qwen2 tied", **WIDE),
    "drafted": lambda: drafted("llama", **WIDE),
    "stock qwen3": lambda: stock("qwen3", head_dim=16, **WIDE),
}
each_model = pytest.mark.parametrize("name", MODELS)


def linears_of(model):
    return [layer for layer in model.model.layers.modules() if isinstance(layer, nn.Linear)] + [model.lm_head]


def rounded(model, weights):
    """A copy of the model with the weights that blocks can express."""
    model, type = deepcopy(model), GGMLQuantizationType[weights.upper()]
    for layer in linears_of(model):
        blocks = quantize(layer.weight.detach().numpy(), type)
        layer.weight = nn.Parameter(torch.from_numpy(dequantize(blocks, type)))
    return model


# --- A model that is rounded ---


@each_model
@pytest.mark.parametrize("weights", ROUNDED)
def test_the_model_is_that_of_the_rounded_weights(name, weights):
    model = MODELS[name]()
    expected, unrounded = rounded(model, weights), logits(model, WITH_MASKS)
    assert fuse(model, weights=weights) is model
    for tokens in (WITH_MASKS, WITH_MASKS[:1, :1], MANY):
        assert_close(logits(model, tokens), logits(expected, tokens))
    assert product_of(model) == f"{SET or 'torch'}, {weights.upper()}"
    assert (logits(model, WITH_MASKS) - unrounded).abs().max() > 1e-3 * unrounded.abs().max()


@pytest.mark.parametrize("name", ["qwen2 tied", "drafted"])
def test_a_verified_text_is_that_of_decoding_token_by_token(name):
    model = MODELS[name]()
    expected = rounded(model, "q8_0")
    arguments = {**left_padded(PROMPTS), "max_new_tokens": 12, "do_sample": False}
    text = expected.generate(**arguments, decoding="autoregressive").tolist()
    fuse(model, weights="q8_0")
    assert model.generate(**arguments, decoding="autoregressive").tolist() == text
    assert model.generate(**arguments, decoding="verified").tolist() == text


@each_model
@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 0.1), (torch.float64, 1e-6)], ids=["bfloat16", "float64"])
def test_it_is_cast_as_the_model_is(name, dtype, most):
    model = MODELS[name]()
    expected = rounded(model, "q8_0").to(dtype)
    fuse(model, weights="q8_0").to(dtype)
    for tokens in (WITH_MASKS, MANY):
        assert_close(logits(model, tokens), logits(expected, tokens), most)


def assert_compiled(model, tokens):
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
        assert_close(compiled(tokens, use_cache=False).logits, logits(model, tokens))


@pytest.mark.few(1)
@each_model
def test_compiled_code_has_the_same_logits(name):
    assert_compiled(fuse(MODELS[name](), weights="q4_1"), WITH_MASKS)


def test_compiled_code_takes_more_tokens_than_c():
    assert_compiled(fuse(MODELS["qwen2 tied"](), weights="q4_1"), MANY)


@each_model
def test_no_weight_of_a_layer_is_kept_as_numbers_or_twice(name):
    model = fuse(MODELS[name](), weights="q8_0")
    logits(model, WITH_MASKS)
    layers = model.model.layers
    tensors = {key: tensor for key, tensor in layers.state_dict().items() if tensor.dim() > 1 and "draft" not in key}
    assert tensors and {tensor.dtype for tensor in tensors.values()} == {torch.uint8}
    places = {tensor.data_ptr() for tensor in tensors.values()}
    for layer in layers:
        assert all(rows.data_ptr() in places for merged in layer.fused.merged for rows in merged.tensors)


@each_model
@pytest.mark.parametrize(
    "copy", [deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copied", "pickled"]
)
def test_a_copy_is_independent(name, copy):
    model = fuse(MODELS[name](), weights="q5_0")
    wanted = logits(model, WITH_MASKS)
    other = copy(model)
    assert torch.equal(logits(other, WITH_MASKS), wanted) and product_of(other) == product_of(model)
    for layer in linears_of(other):
        layer.weight.zero_()
    assert torch.equal(logits(model, WITH_MASKS), wanted) and not torch.equal(logits(other, WITH_MASKS), wanted)


# --- Layers by themselves ---


def packed_linear(type, dtype=torch.float32, has_order=False, has_bias=True):
    """A layer in blocks, and the plain one with its numbers in float32."""
    order = torch.randperm(40).int() if has_order else None
    layer = PackedLinear(Packed(random_blocks(type, 40, 256), type, order), nn.Linear(256, 40, has_bias, dtype=dtype))
    plain = nn.Linear(256, 40, has_bias)
    numbers = torch.from_numpy(dequantize(layer.weight.numpy(), GGMLQuantizationType[type]))
    plain.weight = nn.Parameter(numbers if order is None else numbers[order.long()])
    if has_bias:
        plain.bias = nn.Parameter(layer.bias.detach().float())
    return layer, plain


@pytest.mark.parametrize("rows", [3, 100])
@pytest.mark.parametrize("type, has_order, has_bias", [("Q8_0", False, True), ("Q6_K", True, False)])
@pytest.mark.parametrize("dtype, most", [(torch.float32, 1e-5), (torch.bfloat16, 0.02)], ids=["float32", "bfloat16"])
def test_gradients_go_through_a_layer(rows, type, has_order, has_bias, dtype, most):
    layer, plain = packed_linear(type, dtype, has_order, has_bias)
    x = torch.randn(2, rows, 256, dtype=dtype, requires_grad=True)
    other = x.detach().float().requires_grad_()
    got, wanted = layer(x), plain(other)
    toward = torch.randn_like(wanted)
    got.backward(toward.to(dtype))
    wanted.backward(toward.to(dtype).float())
    assert_close(got.float(), wanted, most)
    assert_close(x.grad.float(), other.grad, most)
    if has_bias:
        assert_close(layer.bias.grad.float(), plain.bias.grad, most)
    with torch.no_grad():
        assert_close(layer(x).float(), wanted, most)


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K"])
def test_a_lora_around_a_layer_is_trained_as_around_the_plain_one(type):
    losses, models = [], []
    for layer in packed_linear(type, has_order=True):
        torch.manual_seed(0)
        config = LoraConfig(r=4, target_modules=["1"], init_lora_weights=False)
        model = get_peft_model(nn.Sequential(nn.Linear(8, 256), layer), config)
        optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
        for _ in range(3):
            loss = model(torch.linspace(-1, 1, 40).view(5, 8)).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
        models.append({key: weight.grad for key, weight in model.named_parameters() if weight.requires_grad})
    assert_close(*losses)
    assert len(models[0]) == 2 and models[0].keys() == models[1].keys()
    for key, gradient in models[0].items():
        assert_close(gradient, models[1][key])


def test_an_embedding_gives_rows_of_numbers_of_its_dtype():
    plain = nn.Embedding(50, 256, padding_idx=3)
    embedding = PackedEmbedding(Packed(random_blocks("Q6_K", 50, 256), "Q6_K"), plain, torch.float32)
    numbers = torch.from_numpy(dequantize(embedding.weight.numpy(), GGMLQuantizationType.Q6_K))
    ids = torch.randint(50, (2, 3, 5))
    assert torch.equal(embedding(ids), numbers[ids])
    assert torch.equal(embedding.bfloat16()(ids), numbers[ids].bfloat16())
    torch.testing.assert_close(embedding.float().mean(), numbers.mean(0))
    with pytest.raises(IndexError):
        embedding(torch.tensor([50]))


def test_an_embedding_of_no_tokens_has_no_rows():
    embedding = PackedEmbedding(Packed(random_blocks("Q8_0", 5, 32), "Q8_0"), nn.Embedding(5, 32), torch.float32)
    assert embedding(torch.ones(2, 0, dtype=torch.long)).shape == (2, 0, 32)


# --- Adapters ---


def test_a_draft_adapter_comes_before_the_rounding_or_behind_it(tmp_path):
    with_adapter(tiny_model(**WIDE)).save_pretrained(tmp_path / "adapter")
    expected = with_adapter(rounded(tiny_model(**WIDE), "q8_0"))
    model = fuse(tiny_model(**WIDE), weights="q8_0")
    models = {
        "before": fuse(PeftModel.from_pretrained(tiny_model(**WIDE), tmp_path / "adapter"), weights="q8_0"),
        "behind": PeftModel.from_pretrained(model, tmp_path / "adapter"),
        "made behind": with_adapter(fuse(tiny_model(**WIDE), weights="q8_0")),
    }
    for each in models.values():
        for tokens in (WITH_MASKS, MANY):
            assert_close(logits(each, tokens), logits(expected, tokens))
        assert product_of(each).endswith("Q8_0")
    models["made behind"].save_pretrained(tmp_path / "saved")
    again = PeftModel.from_pretrained(fuse(tiny_model(**WIDE), weights="q8_0"), tmp_path / "saved")
    assert_close(logits(again, WITH_MASKS), logits(expected, WITH_MASKS))


# --- Given back as numbers ---


@each_model
def test_unfused_it_is_an_ordinary_model_of_the_same_numbers(name, tmp_path):
    model = MODELS[name]()
    expected = rounded(model, "q4_0")
    logits(fuse(model, weights="q4_0"), WITH_MASKS)
    assert unfuse(model) is model and product_of(model) is None
    assert {type(layer) for layer in linears_of(model)} == {nn.Linear}
    assert model.state_dict().keys() == expected.state_dict().keys()
    assert all(torch.equal(weight, model.state_dict()[key]) for key, weight in expected.state_dict().items())
    wanted = logits(expected, WITH_MASKS)
    assert torch.equal(logits(model, WITH_MASKS), wanted)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(type(model).from_pretrained(tmp_path).eval(), WITH_MASKS), wanted)
    model(WITH_MASKS, labels=WITH_MASKS).loss.backward()
    assert all(layer.weight.grad.abs().max() > 0 for layer in linears_of(model))


# --- What is refused ---


def test_saving_is_refused_and_writes_nothing(tmp_path):
    model = fuse(tiny_model(**WIDE), weights="q8_0")
    with pytest.raises(ValueError, match=r"it cannot be saved; keep the GGUF file, or save wedlm.unfuse\(model\)"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    unfuse(model).save_pretrained(tmp_path / "saved")
    assert files_of(tmp_path / "saved")


def assert_refused(model, message, **arguments):
    """Fusing raises one sentence and changes nothing."""
    wanted, weights = logits(model, WITH_MASKS), deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message) as error:
        fuse(model, **arguments)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")
    assert product_of(model) is None and torch.equal(logits(model, WITH_MASKS), wanted)
    assert all(torch.equal(weight, weights[key]) for key, weight in model.state_dict().items())


@pytest.mark.parametrize("weights", ["int4", "int8", "Q8_0", "missing/model.gguf"])
def test_weights_that_are_not_known_say_what_to_do(weights):
    message = f"weights='{weights}' is neither a GGUF file here nor one of q8_0, .*; pass one of them, or leave it out"
    assert_refused(tiny_model(**WIDE), message, weights=weights)


def test_layers_without_whole_blocks_are_refused():
    message = "rounds 32 weights of a row at a time, and this model has a layer with 48 inputs; leave weights out"
    assert_refused(tiny_model(intermediate_size=48), message, weights="q8_0")


def test_without_the_package_gguf_rounding_says_what_to_install(monkeypatch):
    message = "weights='q8_0' needs the package gguf .*; install it by `pip install gguf`, or leave it out"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "gguf", None)
        assert_refused(tiny_model(**WIDE), message, weights="q8_0")

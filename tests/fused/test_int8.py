"""Int8 weights: another model, whose layers multiply with the rounded weights, fused and not."""

import copy

import pytest
import torch
from draft_models import drafted, tiny_model, with_adapter
from helpers import MASK, left_padded, random_tokens
from peft import PeftModel
from torch import nn

from wedlm import fuse, unfuse
from wedlm.fused.int8 import Int8Linear
from wedlm.fused.model import product_of

PROMPTS = [row.tolist() for row in random_tokens(3, 9)]


def rounded(model: nn.Module) -> nn.Module:
    """A copy of the model with the weights that int8 can express."""
    model = copy.deepcopy(model)
    layers = [layer for layer in model.model.layers.modules() if isinstance(layer, nn.Linear)]
    for layer in [*layers, model.lm_head]:
        weight = layer.weight.detach()
        scales = weight.abs().amax(dim=1, keepdim=True) / 127
        layer.weight = nn.Parameter((weight / scales).round() * scales)
    return model


@pytest.mark.parametrize("make, flavour", [(tiny_model, "qwen2 tied"), (drafted, "qwen3"), (drafted, "llama")])
def test_the_model_is_that_of_the_rounded_weights(make, flavour):
    model = make(flavour)
    expected, tokens = rounded(model), random_tokens(2, 7)
    tokens[:, -2:] = MASK
    fuse(model, weights="int8")
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, expected(tokens).logits, atol=1e-4, rtol=1e-4)
        prompt = torch.cat([tokens] * 6, dim=1)  # more rows than C takes
        torch.testing.assert_close(model(prompt).logits, expected(prompt).logits, atol=1e-4, rtol=1e-4)
    arguments = {**left_padded(PROMPTS), "max_new_tokens": 12, "do_sample": False}
    text = model.generate(**arguments, decoding="autoregressive").tolist()
    assert model.generate(**arguments, decoding="verified").tolist() == text


def test_a_model_that_is_cast_is_the_same_for_few_tokens_and_for_many():
    model, tokens = fuse(drafted(), weights="int8").bfloat16(), random_tokens(2, 9)
    with torch.no_grad():
        few, many = model(tokens).logits, model(torch.cat([tokens] * 6, dim=1)).logits[:, :9]
    assert (few - many).abs().max() <= 0.1 * few.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_layer_works_by_itself_and_lets_gradients_through(dtype):
    layer = nn.Linear(20, 30, dtype=dtype)
    layer.weight.data[3] = 0
    int8, x = Int8Linear(layer), torch.randn(2, 5, 20, dtype=dtype, requires_grad=True)
    weight = int8.weight * int8.scales[:, None]
    assert (weight - layer.weight).abs().max() <= layer.weight.abs().max() / 127
    bounds = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.05}
    for context in (torch.enable_grad(), torch.no_grad()):
        with context:
            got = int8(x)
        torch.testing.assert_close(got.float(), nn.functional.linear(x.float(), weight, layer.bias.float()), **bounds)
    int8(x).sum().backward()
    torch.testing.assert_close(x.grad.float(), weight.sum(0).expand_as(x), **bounds)


def test_what_a_rounded_model_cannot_do_is_said(tmp_path):
    model = fuse(tiny_model(), weights="int8")
    assert product_of(model).endswith(", int8")
    for attempt in (lambda: model.save_pretrained(tmp_path / "saved"), model.state_dict):
        with pytest.raises(ValueError, match="has rounded the weights of this model, so it cannot be saved"):
            attempt()
    assert not (tmp_path / "saved").exists()
    with pytest.raises(ValueError, match="load the model again to have them back"):
        unfuse(model)
    with pytest.raises(ValueError, match=r"weights='int4' is not known; pass \"int8\""):
        fuse(tiny_model(), weights="int4")


def test_an_adapter_comes_before_the_rounding(tmp_path):
    with_adapter(tiny_model()).save_pretrained(tmp_path)
    tokens, model = torch.cat([random_tokens(1, 6), torch.tensor([[MASK]])], dim=1), fuse(tiny_model(), weights="int8")
    with torch.no_grad():
        before = model(tokens).logits
        for add in (lambda: PeftModel.from_pretrained(model, tmp_path), lambda: with_adapter(model)):
            with pytest.raises(ValueError, match="load the model again, add the adapter, and then round them"):
                add()
            assert torch.equal(model(tokens).logits, before)
        after = fuse(PeftModel.from_pretrained(tiny_model(), tmp_path), weights="int8")(tokens).logits
    assert torch.equal(after[:, :-1], before[:, :-1]) and not torch.equal(after[:, -1], before[:, -1])


def test_nothing_of_the_weights_is_kept_in_another_dtype():
    layers = fuse(tiny_model(), weights="int8").model.layers
    large = [tensor for tensor in [*layers.parameters(), *layers.buffers()] if tensor.dim() > 1]
    assert large and {tensor.dtype for tensor in large} == {torch.int8}
    assert all(merged.weight.dtype == torch.int8 for layer in layers for merged in layer.fused.merged)

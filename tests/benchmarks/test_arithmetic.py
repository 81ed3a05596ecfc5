"""What the page of arithmetic counts is what models have, and on the GPU of its record it gives the record."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from wedlm import WeDLMConfig, WeDLMForCausalLM


@pytest.fixture
def arithmetic(load_benchmark):
    return load_benchmark("arithmetic")


def random_model(shape):
    with torch.device("meta"):
        return WeDLMForCausalLM(WeDLMConfig(**shape | {"mask_token_id": 0}))


@pytest.mark.parametrize("name", ["0.6B", "8B", "70B"])
def test_a_step_reads_the_weights_of_all_linear_layers(arithmetic, name):
    shape = arithmetic.MODELS[name]
    model = random_model(shape | {"num_hidden_layers": 1})
    weights = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    head = model.lm_head.weight.numel()
    assert arithmetic.weights_read(shape) == shape["num_hidden_layers"] * (weights - head) + head


def test_an_adapter_has_the_weights_of_a_lora_on_all_linear_layers(arithmetic):
    shape = arithmetic.MODELS["8B"] | {"num_hidden_layers": 1}
    config = LoraConfig(r=arithmetic.PUBLISHED_RANK, target_modules="all-linear")
    with torch.device("meta"):
        model = get_peft_model(random_model(shape), config)
    assert arithmetic.adapter_weights(shape) == sum(w.numel() for w in model.parameters() if w.requires_grad)


def test_the_gpu_of_the_record_gives_its_numbers(arithmetic):
    card, shape = arithmetic.Card("H200", arithmetic.H200_BANDWIDTH, 989e12, 141e9), arithmetic.MODELS["8B"]

    def recorded(way):
        return pytest.approx(arithmetic.measured(way)["milliseconds"]["median"], rel=2e-3)

    assert arithmetic.reading(card, shape, 1) == pytest.approx(arithmetic.measured("stock")["floor"], rel=2e-3)
    assert arithmetic.ordinary(card, shape, 1, 1) == recorded("stock")
    assert arithmetic.ordinary(card, shape, 1, 8) == recorded("verified, 8 queries")
    for queries in (1, 8, 16):
        assert arithmetic.captured(card, shape, 1, queries) == recorded(f"captured, {queries} queries")
    assert arithmetic.captured(card, shape, 1, 8, fused=True) == recorded("fused, captured, 8 queries")


def test_what_is_computed_takes_longer_than_reading_with_many_rows(arithmetic):
    card, shape = arithmetic.CARDS[0], arithmetic.MODELS["8B"]
    one, two = (arithmetic.computing(card, shape, rows, 16) for rows in (32, 64))
    assert two == 2 * one > arithmetic.reading(card, shape, 64)
    longer = arithmetic.captured(card, shape, 64, 16) - arithmetic.captured(card, shape, 32, 16)
    assert longer == pytest.approx(one)
    assert arithmetic.num_cards(card, arithmetic.MODELS["70B"], 1) == 2

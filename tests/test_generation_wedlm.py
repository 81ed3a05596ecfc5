import pytest
import torch
from helpers import CHECKPOINTS, load, random_tokens, stock_model

MASK = 159


def prefer(model, token):
    """Makes `token` the model's favourite at every position."""
    with torch.no_grad():
        model.lm_head.weight[token] = 0
        model.lm_head.weight *= 1e-3  # near-uniform elsewhere
    hook = lambda module, args, out: out.index_fill(-1, torch.tensor([token]), 100.0)  # noqa: E731
    model.lm_head.register_forward_hook(hook)
    return model


@pytest.mark.parametrize(
    "settings",
    [{}, {"do_sample": True}, {"num_beams": 3}, {"num_beams": 2, "do_sample": True}, {"repetition_penalty": 1.3}],
    ids=str,
)
def test_mask_is_never_produced(model, settings):
    torch.manual_seed(0)
    prompt = random_tokens(2, 6)
    inputs = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8, **settings}
    prefer(model, MASK)
    assert model(prompt).logits.argmax(-1).eq(MASK).all(), "the test would not notice a missing ban"
    output = model.generate(prompt, **inputs)
    assert output.shape[1] > 6
    assert not output.eq(MASK).any()


def test_without_a_mask_token_nothing_is_banned(model):
    model.config.mask_token_id = None
    prompt = random_tokens(1, 6)
    output = prefer(model, MASK).generate(prompt, max_new_tokens=4)
    assert output[0, 6:].tolist() == [MASK] * 4


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=str)
def test_text_is_that_of_an_ordinary_qwen(model, settings):
    """The golden checkpoints never choose MASK by themselves here, so the ban changes nothing."""
    stock = stock_model(model)
    prompt = random_tokens(2, 6)
    inputs = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 12, "pad_token_id": 0, **settings}
    inputs["suppress_tokens"] = [MASK]
    outputs = []
    for generate in (model.generate, stock.generate):
        torch.manual_seed(0)
        outputs.append(generate(prompt, **inputs))
    assert torch.equal(*outputs)


def test_assisted_decoding_never_produces_mask():
    model, assistant = load(CHECKPOINTS / "q3"), load(CHECKPOINTS / "q3")
    output = prefer(model, MASK).generate(
        random_tokens(1, 6), assistant_model=prefer(assistant, MASK), max_new_tokens=8
    )
    assert not output.eq(MASK).any()

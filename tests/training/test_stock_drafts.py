"""A draft adapter trains on a stock model as on the WeDLM that is converted from it."""

import pytest
import torch
from peft import get_peft_model
from trainer_runs import samples
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from wedlm import DraftLoraConfig, WeDLMForCausalLM, convert_to_wedlm
from wedlm.training.draft_collator import DraftCollator

SHAPE = {
    "vocab_size": 160, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.2,
}  # fmt: skip
BATCH = DraftCollator(mask_token_id=SHAPE["vocab_size"], window_size=4)([samples()[index] for index in range(4)])


def adapted(model):
    """The model with an adapter whose weights are random and all count."""
    torch.manual_seed(1)
    model = get_peft_model(model, DraftLoraConfig(r=4, lora_alpha=16))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.1)
    return model


def test_loss_and_gradients_are_those_of_the_converted_model(tmp_path):
    torch.manual_seed(0)
    stock = LlamaForCausalLM(LlamaConfig(**SHAPE))
    stock.save_pretrained(tmp_path / "stock")
    convert_to_wedlm(tmp_path / "stock", tmp_path / "wedlm")
    results = []
    for model in (stock, WeDLMForCausalLM.from_pretrained(tmp_path / "wedlm")):
        model = adapted(model)
        output = model(**BATCH)
        output.loss.backward()
        gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        results.append((output.loss, output.target_losses, gradients))
    (loss, losses, gradients), (expected, expected_losses, expected_gradients) = results
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(losses, expected_losses)
    assert gradients.keys() == expected_gradients.keys() and len(gradients) == 29
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name])


def test_a_head_with_more_than_one_layer():
    """Gemma 2 caps its logits: the loss is that of the capped ones, and the weights of the model get no gradient."""
    shape = {**SHAPE, "head_dim": 8, "sliding_window": 6}
    losses = []
    for cap in (30.0, 1e-3):  # with next to no difference between logits, all distributions are the same
        torch.manual_seed(0)
        model = adapted(Gemma2ForCausalLM(Gemma2Config(**shape, final_logit_softcapping=cap)))
        output = model(**BATCH)
        output.loss.backward()
        assert all("lora_" in name for name, weight in model.named_parameters() if weight.grad is not None)
        losses.append(output.target_losses.max().item())
    assert losses[0] > 0.5 and losses[1] < 0.01


def test_gradient_checkpointing_is_refused():
    model = adapted(LlamaForCausalLM(LlamaConfig(**SHAPE))).train()
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient_checkpointing computes layers again .* LlamaForCausalLM"):
        model(**BATCH)


def test_a_mixture_of_experts():
    shape = {**SHAPE, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    assert adapted(Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape)))(**BATCH).target_losses.max() > 0

import pytest
import torch
from helpers import CHECKPOINTS, load, random_tokens
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model

POSITIONS = torch.tensor([[0, 1, 2, 3, 6, 4, 5, 7]])


def logits(model):
    return model(input_ids=random_tokens(1, 8), position_ids=POSITIONS).logits


@pytest.fixture
def adapted(model):
    torch.manual_seed(0)
    adapted = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM")).eval()
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:  # zero at the start: without this the adapter changes nothing
            torch.nn.init.normal_(weight, std=0.5)
    return adapted


def test_saved_reloaded_and_merged_is_the_same_model(adapted, checkpoint, tmp_path):
    plain = logits(load(checkpoint))
    expected = logits(adapted)
    assert (expected - plain).abs().max() > 0.1
    adapted.save_pretrained(tmp_path / "adapter")
    assert torch.equal(logits(PeftModel.from_pretrained(load(checkpoint), tmp_path / "adapter").eval()), expected)
    assert torch.equal(logits(AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()), expected)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(logits(merged), expected, atol=1e-4, rtol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(logits(load(tmp_path / "merged")), logits(merged))


def test_adapted_model_generates_and_trains(adapted):
    output = adapted.generate(input_ids=random_tokens(1, 8), max_new_tokens=4)
    assert output.shape[1] > 8 and not output.eq(159).any()
    ids = random_tokens(2, 8)
    adapted(input_ids=ids, labels=ids).loss.backward()
    trained = {name for name, weight in adapted.named_parameters() if weight.grad is not None}
    assert trained == {name for name, _ in adapted.named_parameters() if "lora_" in name}


def test_the_generation_config_stays_one_object_over_calls():
    """PEFT sets it again in each call."""
    model = load(CHECKPOINTS / "q3")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    config = model.generation_config
    prompt = random_tokens(1, 5)
    adapted.generate(input_ids=prompt, max_new_tokens=4, eos_token_id=None)
    config.max_new_tokens = 2
    assert model.generation_config is config
    assert adapted.generate(input_ids=prompt, eos_token_id=None).shape[1] == 7

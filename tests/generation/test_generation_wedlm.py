import pytest
import torch
from decoded import MODELS, generate, prefer
from helpers import DECODE, MASK, PROMPTS, load, random_tokens, stock_model
from transformers import GenerationConfig


@pytest.mark.parametrize(
    "arguments",
    [
        {"decoding": "streaming", "do_sample": True},
        {"decoding": "blockwise", "entropy_threshold": 100.0},
        {"decoding": "verified"},
        {"decoding": "autoregressive", "do_sample": True},
        {"decoding": "autoregressive", "num_beams": 3},
    ],
    ids=str,
)
def test_mask_is_never_produced(model, arguments):
    torch.manual_seed(0)
    prompt = random_tokens(2, 6)
    prefer(model, MASK)
    assert model(prompt).logits.argmax(-1).eq(MASK).all(), "the test would not notice a missing ban"
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, **arguments)
    assert output.shape[1] > 6
    assert not output.eq(MASK).any()


def test_without_a_mask_token_autoregressive_decoding_goes_on(model):
    model.config.mask_token_id = None
    prompt = random_tokens(1, 6)
    output = prefer(model, MASK).generate(prompt, max_new_tokens=4, decoding="autoregressive")
    assert output[0, 6:].tolist() == [MASK] * 4
    with pytest.raises(ValueError, match=r"mask_token_id is None .* set model\.config\.mask_token_id"):
        model.generate(prompt, max_new_tokens=4)


@pytest.mark.parametrize("arguments", [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}], ids=str)
def test_autoregressive_text_is_that_of_an_ordinary_qwen(model, arguments):
    stock = stock_model(model)
    prompt = random_tokens(2, 6)
    inputs = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 12, "pad_token_id": 0, **arguments}
    outputs = []
    for call, more in ((model.generate, {"decoding": "autoregressive"}), (stock.generate, {})):
        torch.manual_seed(0)
        outputs.append(call(prompt, **inputs, **more, suppress_tokens=[MASK]))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("decoding", ["autoregressive", "verified"])
def test_recorded_autoregressive_runs(decoding):
    for run in DECODE["autoregressive"]:
        prompt, model = torch.tensor([PROMPTS[run["prompt"]]]), MODELS[run["checkpoint"]]
        output = model.generate(prompt, decoding=decoding, max_new_tokens=run["max_new_tokens"])
        assert output[0, prompt.shape[1] :].tolist() == run["ids"]


def test_changed_defaults_survive_saving(model, tmp_path):
    changes = {"decoding": "blockwise", "window_size": 5, "entropy_threshold": None, "distance_penalty": 0.0}
    changes |= {"acceptance_ratio": 0.25}
    defaults = ("streaming", None, 0.4, 0.02, 1.0)
    assert tuple(getattr(model.generation_config, name) for name in changes) == defaults
    model.generation_config.update(**changes)
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert {name: getattr(again.generation_config, name) for name in changes} == changes
    default, changed = (generate(MODELS["q3"], PROMPTS, max_new_tokens=12, **more) for more in ({}, changes))
    assert generate(again, PROMPTS, max_new_tokens=12) == changed != default


def test_a_call_or_its_config_overrides_the_defaults(model):
    (sequential,) = generate(model, [PROMPTS[2]], max_new_tokens=12, entropy_threshold=None)
    (parallel,) = generate(model, [PROMPTS[2]], max_new_tokens=12, window_size=16)
    assert sequential.forwards == 12 > parallel.forwards
    config = GenerationConfig(max_new_tokens=12, entropy_threshold=None, return_dict_in_generate=True)
    assert model.generate(torch.tensor([PROMPTS[2]]), generation_config=config).forwards.tolist() == [12]
    assert vars(config).get("window_size") is None, "the caller's config was changed"
    assert model.generation_config.entropy_threshold == 0.4

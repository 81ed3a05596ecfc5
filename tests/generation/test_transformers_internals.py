"""What is private in transformers, or differs between its versions, means what this package takes it to mean."""

from inspect import signature
from pathlib import Path

import pytest
import torch
import transformers
from helpers import CHECKPOINTS, load, random_tokens, stock_model
from transformers import DynamicCache, GenerationConfig

from wedlm.generation.package import VERSION
from wedlm.generation.transformers_internals import (
    CACHE,
    dropped_mask_length,
    end_tokens_of,
    is_passed_by_caller,
    pad_token_of,
    processors_of,
    resolved_generation_config,
)
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMAttention


@pytest.fixture(scope="module")
def model():
    return load(CHECKPOINTS / "q3")


# --- The cache ---

DECODINGS = ["autoregressive", "streaming", "blockwise", "verified"]
SETTINGS = {"max_new_tokens": 24, "window_size": 4, "eos_token_id": None, "pad_token_id": 0}


def queries_of_forwards(model, **arguments) -> list[int]:
    widths = []
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda _, ids: widths.append(ids[0].shape[1]))
    model.generate(**SETTINGS, **arguments)
    hook.remove()
    return widths


@pytest.mark.parametrize("more", [{}, {"cache_implementation": "static"}], ids=["dynamic", "static"])
@pytest.mark.parametrize("decoding", DECODINGS)
def test_only_the_first_forward_reads_the_prompt(model, decoding, more):
    prompt = random_tokens(1, 60)
    first, *others = queries_of_forwards(model, inputs=prompt, decoding=decoding, **more)
    assert 60 <= first <= 68 and others and max(others) <= 8
    if decoding == "autoregressive":
        assert others == [1] * 23
    cache = DynamicCache()
    model(prompt[:, :-1], **{CACHE: cache})
    if not more:
        assert max(queries_of_forwards(model, inputs=prompt, decoding=decoding, **{CACHE: cache})) <= 9


@pytest.fixture()
def deaf_attention(monkeypatch):
    """Attention that swallows its cache, as that of version 0.2.0 did on transformers 5.24."""
    forward = WeDLMAttention.forward

    def swallow(self, *args, **kwargs):
        return forward(self, *args, **{name: value for name, value in kwargs.items() if name != CACHE})

    monkeypatch.setattr(WeDLMAttention, "forward", swallow)


# (A parallel decoding that continues from a cache would end with an error of shapes.)
@pytest.mark.parametrize(
    "decoding, cached", [("streaming", 0), ("verified", 0), ("autoregressive", 0), ("autoregressive", 8)]
)
def test_a_forward_that_fills_no_cache_ends_the_call(model, deaf_attention, decoding, cached):
    prompt, cache = random_tokens(1, 9), DynamicCache(config=model.config)
    shape = (1, model.config.num_key_value_heads, cached, model.config.head_dim)
    for layer in range(model.config.num_hidden_layers if cached else 0):
        cache.update(torch.zeros(shape), torch.zeros(shape), layer)
    expected = f"The first forward left the cache empty, .* wedlm {VERSION} .* this is {transformers.__version__}: "
    with pytest.raises(RuntimeError, match=expected):
        model.generate(prompt, decoding=decoding, **SETTINGS, **{CACHE: cache})
    model.generate(prompt, decoding=decoding, use_cache=False, **SETTINGS)


def test_a_forward_that_fills_no_cache_ends_a_batch(model, deaf_attention):
    (output,) = model.generate_batch([[5, 6, 7]], decoding="streaming", **SETTINGS).values()
    assert output.error.startswith("The request has failed: RuntimeError: The first forward left the cache empty")


@pytest.mark.parametrize("name, part", [("past", "head"), ("past_key_value", "model"), ("cache_params", "attention")])
def test_a_cache_by_an_unknown_name_is_refused(model, part, name):
    forward = {"head": model, "model": model.model, "attention": model.model.layers[0].self_attn}[part]
    with pytest.raises(TypeError, match=f"This forward takes a cache as {CACHE}=, not as {name}=; the code of wedlm"):
        forward(torch.tensor([[5, 6]]), **{name: DynamicCache()})


def test_the_cache_has_the_name_of_this_version(model):
    """In the signatures that transformers reads, as an argument of any place, and in every output."""
    stock = stock_model(model)
    for ours, theirs in ((model, stock), (model.model, stock.model)):
        assert CACHE in signature(theirs.forward).parameters
        assert list(signature(ours.forward).parameters)[:5] == list(signature(theirs.forward).parameters)[:5]
    ids, cache, other = random_tokens(1, 9), DynamicCache(), DynamicCache()
    model(ids[:, :6], **{CACHE: cache})
    model(ids[:, :6], None, None, other)
    output = model(ids[:, 6:], **{CACHE: cache})
    torch.testing.assert_close(output.logits, model(ids).logits[:, 6:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(ids[:, 6:], None, None, other).logits, output.logits, atol=1e-4, rtol=1e-4)
    assert output[CACHE] is cache and output.past_key_values is cache
    generated = model.generate(ids, return_dict_in_generate=True, **SETTINGS)
    assert generated.past_key_values is generated[CACHE] is not None


@pytest.mark.skipif(CACHE == "past_key_values", reason="past_key_values is the name of this version")
def test_the_old_name_is_taken_with_the_warning_of_transformers(model):
    ids = random_tokens(1, 9)
    with pytest.warns(FutureWarning, match="`past_key_values` is deprecated .* Use `cache` instead"):
        cache = model(ids[:, :6], past_key_values=DynamicCache()).cache
    assert cache.get_seq_length() == 6
    with pytest.warns(FutureWarning, match="`past_key_values` is deprecated .* Use `cache` instead") as warned:
        text = model.generate(ids, past_key_values=cache, **SETTINGS)
    assert [Path(each.filename) for each in warned] == [Path(__file__)], "the caller's line is shown"
    assert torch.equal(text, model.generate(ids, **SETTINGS))


# --- Generation ---


def config_seen_by_a_decoding(model, input_ids, **arguments):
    """The resolved config that generate() hands to a decoding."""
    seen = []

    def loop(model, input_ids, generation_config, **kwargs):
        seen.append(generation_config)
        return input_ids

    model.generate(input_ids, custom_generate=loop, **arguments)
    return seen[0]


def test_special_tokens_are_tensors(model):
    config = config_seen_by_a_decoding(model, torch.tensor([[5, 6]]), eos_token_id=[2, 7], pad_token_id=0)
    assert end_tokens_of(config).tolist() == [2, 7] and pad_token_of(config).item() == 0
    config = config_seen_by_a_decoding(model, torch.tensor([[5, 6]]), eos_token_id=None)
    assert end_tokens_of(config) is None


def test_a_mask_of_ones_is_dropped_and_its_width_kept(model):
    assert dropped_mask_length(GenerationConfig()) is None
    config = config_seen_by_a_decoding(
        model, torch.tensor([[5, 6, 7]]), attention_mask=torch.ones(1, 3, dtype=torch.long)
    )
    assert dropped_mask_length(config) in (None, 3)


def test_a_cache_of_the_callers_is_known(model):
    cache = DynamicCache()
    assert not is_passed_by_caller(cache)
    model.generate(torch.tensor([[5, 6]]), **{CACHE: cache}, max_new_tokens=1)
    assert is_passed_by_caller(cache)


def test_arguments_are_resolved_and_refused_as_generate_does(model):
    config = resolved_generation_config(model, decoding="verified", max_new_tokens=7)
    assert (config.decoding, config.max_new_tokens) == ("verified", 7)
    with pytest.raises(ValueError, match="num_beams=3 is not offered"):
        resolved_generation_config(model, decoding="verified", num_beams=3)


def test_processors_are_those_of_generate(model):
    config = GenerationConfig(repetition_penalty=1.3, eos_token_id=[2])
    names = [type(processor).__name__ for processor in processors_of(model, config, torch.tensor([[5]]))]
    assert "RepetitionPenaltyLogitsProcessor" in names and names[0] == "SuppressTokensLogitsProcessor"

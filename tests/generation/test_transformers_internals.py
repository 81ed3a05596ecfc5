"""The private names of transformers exist and mean what this package takes them to mean."""

import pytest
import torch
from helpers import CHECKPOINTS, load
from transformers import AutoModelForCausalLM, CompileConfig, DynamicCache, GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from wedlm import WeDLMConfig, WeDLMForCausalLM
from wedlm.generation.transformers_internals import (
    attention_of,
    compile_on_any_device,
    dropped_mask_length,
    end_tokens_of,
    has_hooks,
    is_passed_by_caller,
    keep_on_save,
    pad_token_of,
    processors_of,
    resolved_generation_config,
)


@pytest.fixture(scope="module")
def model():
    return load(CHECKPOINTS / "q3")


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
    model.generate(torch.tensor([[5, 6]]), past_key_values=cache, max_new_tokens=1)
    assert is_passed_by_caller(cache)


def test_unknown_fields_are_saved(tmp_path):
    config = GenerationConfig.from_model_config(WeDLMConfig())
    config.window_size = 5
    keep_on_save(config)
    config.save_pretrained(tmp_path)
    assert GenerationConfig.from_pretrained(tmp_path).window_size == 5


def test_arguments_are_resolved_and_refused_as_generate_does(model):
    config = resolved_generation_config(model, decoding="verified", max_new_tokens=7)
    assert (config.decoding, config.max_new_tokens) == ("verified", 7)
    with pytest.raises(ValueError, match="num_beams=3 is not offered"):
        resolved_generation_config(model, decoding="verified", num_beams=3)


def test_processors_are_those_of_generate(model):
    config = GenerationConfig(repetition_penalty=1.3, eos_token_id=[2])
    names = [type(processor).__name__ for processor in processors_of(model, config, torch.tensor([[5]]))]
    assert "RepetitionPenaltyLogitsProcessor" in names and names[0] == "SuppressTokensLogitsProcessor"


def test_hooks_are_seen(model):
    assert not has_hooks(model)
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    assert has_hooks(model)
    handle.remove()
    assert not has_hooks(model)


def test_the_attention_that_was_set():
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINTS / "q3", attn_implementation="eager")
    assert attention_of(model.config) == "eager"
    model.set_attn_implementation("sdpa")
    assert attention_of(model.config) == "sdpa"


def test_a_compile_config_counts_on_a_cpu():
    config = CompileConfig()
    compile_on_any_device(config)
    assert config._compile_all_devices


def test_the_auto_classes_know_the_names():
    assert CONFIG_MAPPING["wedlm"] is WeDLMConfig
    assert MODEL_FOR_CAUSAL_LM_MAPPING[WeDLMConfig] is WeDLMForCausalLM

"""Plain checkpoints: the facts from the config alone are those of the model and of generate()'s own checks."""

import json

import pytest
from draft_models import FLAVOURS
from helpers import CHECKPOINTS
from hypothesis import example, given
from hypothesis import strategies as st
from stock_checkpoints import CLASSES
from tiers import property_settings

from wedlm.checkpoints import facts
from wedlm.checkpoints.architectures import read_wedlm_config, wedlm_model
from wedlm.checkpoints.errors import CheckpointError
from wedlm.checkpoints.plain import is_plain, is_plain_generation, number_of_parameters
from wedlm.generation.parameters import DECODINGS

SHAPE = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "rope_theta": 10000.0,
}
WEDLM = {"model_type": "wedlm", **SHAPE, "head_dim": 10, "mask_token_id": 3, "pad_token_id": 0, "eos_token_id": [1, 2]}
STOCK = {name: {"model_type": name, **SHAPE, "torch_dtype": "bfloat16"} for name in CLASSES}
CONFIGS = {
    **{name: WEDLM | fields for name, fields in FLAVOURS.items()},
    "no mask": WEDLM | {"mask_token_id": None},
    "golden": json.loads((CHECKPOINTS / "q25" / "config.json").read_text()),
    "draft adapter": WEDLM | {"drafts": {"rank": 3, "modules": ["q_proj", "down_proj", "up_proj", "nothing"]}},
    **{f"stock {name}": fields | {"sliding_window": None} for name, fields in STOCK.items()},
    "stock, tied": STOCK["llama"] | {"tie_word_embeddings": True, "num_key_value_heads": 4},
}
GENERATIONS = {
    "no file": {},
    "saved": {"_from_model_config": False, "eos_token_id": [1, 2], "pad_token_id": 0, "output_attentions": False,
              "output_hidden_states": False, "transformers_version": "5.23.0", "use_cache": True},
    "tuned": {"decoding": "verified", "window_size": 4, "entropy_threshold": None, "distance_penalty": 0.0},
    "fast": {"decoding": "verified", "acceptance_ratio": 0.5},
    "autoregressive": {"decoding": "autoregressive"},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "max_new_tokens": 9},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_the_usual_configs_are_plain_and_their_parameters_are_counted_right(name):
    config = read_wedlm_config(CONFIGS[name], name)
    assert is_plain(config)
    _, model = wedlm_model(CONFIGS[name], name)
    assert number_of_parameters(config) == model.num_parameters()


@pytest.mark.parametrize("name", GENERATIONS)
def test_the_usual_generation_configs_are_plain(name):
    assert is_plain_generation(GENERATIONS[name])


ODD = [None, True, False, 0, 1, 2, 7, -1, 2**63, 0.5, -0.5, 10**400, "", "eager", [], [1], {}]
ODD_OF_CONFIG = {
    "attn_implementation": ["flash_attention_2", "nothing"],
    "drafts": [{"rank": 2, "modules": ["k_proj", "k_proj"]}, {"rank": 0, "modules": []}, {"rank": 2}],
    "hidden_act": ["gelu", "nothing"],
    "layer_types": [["full_attention"] * 2, ["full_attention", "sliding_attention"], ["full_attention"]],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": "x"},
        {"rope_type": "default", "rope_theta": 10**300},
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        {"rope_type": "nothing", "rope_theta": 1e4},
        {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
    ],
    "torch_dtype": ["float16", "nothing"],
    **dict.fromkeys(
        ("head_dim", "hidden_size", "initializer_range", "mask_token_id", "num_beams", "num_key_value_heads",
         "pad_token_id", "partial_rotary_factor", "rope_theta", "sliding_window", "temperature", "vocab_size"),
        [],
    ),
}  # fmt: skip
ODD_OF_GENERATION = {
    "decoding": list(DECODINGS),
    "cache_implementation": ["static", "quantized"],
    "repetition_penalty": [1.0, 1.1],
    **dict.fromkeys(
        ("acceptance_ratio", "bad_words_ids", "distance_penalty", "do_sample", "eos_token_id", "max_new_tokens",
         "min_new_tokens", "num_beams", "output_attentions", "pad_token_id", "prefill_chunk_size", "suppress_tokens",
         "temperature", "top_k", "use_cache", "window_size"),
        [],
    ),
}  # fmt: skip


def changes(odd):
    """One or two fields with odd values."""
    field = st.sampled_from(sorted(odd)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(ODD + odd[name]))
    )
    return st.lists(field, max_size=2).map(dict)


def answer(folder):
    try:
        return facts.read_facts(folder)
    except CheckpointError as error:
        return str(error)


@property_settings(200, deadline=None)
@given(
    st.sampled_from(sorted(CONFIGS)), changes(ODD_OF_CONFIG), st.sampled_from(sorted(GENERATIONS)),
    changes(ODD_OF_GENERATION),
)  # fmt: skip
@example("qwen3", {"rope_theta": 10**300}, "no file", {})
@example("qwen3", {"rope_theta": 10**400}, "no file", {})
@example("qwen3", {"pad_token_id": 50}, "no file", {})
@example("qwen3", {"vocab_size": 2**63}, "no file", {})
@example("qwen3", {}, "saved", {"eos_token_id": []})
@example("qwen3", {}, "saved", {"eos_token_id": 2**63})
@example("qwen3", {}, "saved", {"output_attentions": True})
@example("qwen3", {}, "sampling", {"max_new_tokens": 0})
@example("qwen3", {}, "sampling", {"acceptance_ratio": 0.5})
@example("qwen3", {}, "fast", {"do_sample": True})
def test_facts_without_a_model_are_those_of_the_model(tmp_path_factory, config, of_config, generation, of_generation):
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "config.json").write_text(json.dumps(CONFIGS[config] | of_config))
    (folder / "generation_config.json").write_text(json.dumps(GENERATIONS[generation] | of_generation))
    fast = answer(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "is_plain", lambda config: False)
        assert answer(folder) == fast


@pytest.mark.parametrize(
    "fields",
    [{"hidden_act": "gelu"}, {"layer_types": ["full_attention", "sliding_attention"]}, {"unknown": 0.5},
     {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, {"pad_token_id": 50},
     {"attn_implementation": "flash_attention_2"}, {"intermediate_size": 0}, {"drafts": {"rank": 2}}],
)  # fmt: skip
def test_configs_that_are_not_plain(fields):
    assert not is_plain(read_wedlm_config(WEDLM | fields, "a checkpoint"))

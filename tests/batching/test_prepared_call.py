"""Requests that are resolved and checked, and not begun."""

import pytest
from helpers import CHECKPOINTS, load
from tiny_tokenizer import make_tokenizer
from transformers import GenerationConfig, LogitsProcessorList, TemperatureLogitsWarper

from wedlm.batching.prepared_call import prepare

MODEL = load(CHECKPOINTS / "q3")


def call(generation_config=None, **settings):
    return prepare(MODEL, [3, 4, 5], generation_config, {"max_new_tokens": 9, **settings}, seed=0)


def test_equal_settings_share_a_group_whatever_the_limit_is():
    assert call().key == call().key == call(max_new_tokens=40, decoding="streaming").key
    assert call(eos_token_id=7).key == call(eos_token_id=7).key != call().key


@pytest.mark.parametrize(
    "settings",
    [
        {"decoding": "verified"},
        {"window_size": 3},
        {"entropy_threshold": 1.0},
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.5},
        {"eos_token_id": [7, 8]},
        {"suppress_tokens": [9]},
        {"max_new_tokens": 2},  # a window of two slots
    ],
    ids=str,
)
def test_other_settings_have_a_group_of_their_own(settings):
    assert call(**settings).key not in (None, call().key)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.2},
        {"stop_strings": ["a"], "tokenizer": make_tokenizer()},
        {"max_time": 10.0},
        {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)]), "do_sample": True},
        {"prefix_allowed_tokens_fn": lambda row, text: [9]},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_who_reads_the_text_or_brings_an_object_shares_with_nobody(settings):
    assert call(**settings).key is None


def test_token_by_token_is_verified_decoding_without_drafts():
    prepared = call(decoding="autoregressive", acceptance_ratio=0.5)
    same = call(decoding="verified", window_size=1, prompt_lookup_num_tokens=0)
    assert prepared.budget == (12, 2) and prepared.key == same.key
    assert call(GenerationConfig(decoding="autoregressive")).budget == (12, 2)


def test_the_config_is_left_as_it_is():
    config = GenerationConfig(max_new_tokens=5, cache_implementation="static")
    before, own = config.to_dict(), MODEL.generation_config.to_dict()
    prepared = prepare(MODEL, [3, 4], config, {"do_sample": True}, seed=0)
    assert prepared.max_new_tokens == 5
    assert config.to_dict() == before and MODEL.generation_config.to_dict() == own

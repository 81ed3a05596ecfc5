"""Requests that are resolved and checked, and not begun."""

import pytest
import torch
from helpers import CHECKPOINTS, load
from tiny_tokenizer import make_tokenizer
from transformers import GenerationConfig, LogitsProcessorList, TemperatureLogitsWarper
from transformers.generation.continuous_batching.requests import RequestState

from wedlm.batching.request import Request

MODEL = load(CHECKPOINTS / "q3")


def request_of(generation_config=None, **settings):
    settings = {"max_new_tokens": 9, **settings}
    return Request.from_settings(MODEL, RequestState("a", [3, 4, 5]), generation_config, settings, seed=0)


def key_of(**settings):
    return request_of(**settings).settings_key


def test_equal_settings_share_a_group_whatever_the_limit_is():
    assert key_of() == key_of() == key_of(max_new_tokens=40, decoding="streaming")
    assert key_of(eos_token_id=7) == key_of(eos_token_id=torch.tensor(7))


def test_other_settings_have_a_group_of_their_own():
    others = [
        {"decoding": "verified"},
        {"window_size": 3},
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.5},
        {"eos_token_id": [7, 8]},
        {"max_new_tokens": 2},  # a window of two slots
    ]
    keys = {key_of(), *(key_of(**settings) for settings in others)}
    assert len(keys) == 1 + len(others) and None not in keys


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
def test_callbacks_and_objects_are_shared_with_no_other_request(settings):
    assert key_of(**settings) is None


def test_token_by_token_is_verified_decoding_without_drafts():
    request = request_of(decoding="autoregressive", acceptance_ratio=0.5)
    assert request.settings_key == key_of(decoding="verified", window_size=1, prompt_lookup_num_tokens=0)
    assert request.budget == request_of(GenerationConfig(decoding="autoregressive")).budget == (12, 2)


def test_the_config_is_left_as_it_is():
    config = GenerationConfig(max_new_tokens=5, cache_implementation="static")
    before, own = config.to_dict(), MODEL.generation_config.to_dict()
    Request.from_settings(MODEL, RequestState("a", [3, 4]), config, {"do_sample": True}, seed=0)
    assert config.to_dict() == before and MODEL.generation_config.to_dict() == own

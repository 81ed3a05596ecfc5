"""The settings of a call."""

import pytest
import torch
from decoded import generate
from helpers import (
    PROMPTS,
)
from transformers import GenerationConfig, LogitsProcessorList

from wedlm.generation.parameters import DEFAULTS, default_window_size
from wedlm.generation.policy import Policy


def test_the_window_is_as_large_as_suits_the_device(model):
    settings = {"max_new_tokens": 40, "entropy_threshold": 100.0, "eos_token_id": None}
    on_a_cpu = generate(model, PROMPTS, **settings)
    assert on_a_cpu == generate(model, PROMPTS, **settings, window_size=None)
    assert on_a_cpu == generate(model, PROMPTS, **settings, window_size=8)
    assert on_a_cpu != generate(model, PROMPTS, **settings, window_size=16)
    assert [default_window_size(torch.device(device)) for device in ("cpu", "cuda", "mps")] == [8, 16, 16]


def test_a_ratio_of_one_is_no_margin():
    """Else a draft whose score equals the best would be accepted, and autoregressive decoding may write another."""
    margins = {}
    for ratio in (1.0, 0.5, 5e-324):
        config = GenerationConfig(**DEFAULTS | {"acceptance_ratio": ratio})
        config._eos_token_tensor = config.num_looked_up = None  # generate() sets both
        margins[ratio] = Policy.of(config, LogitsProcessorList(), 4, 9, torch.device("cpu")).acceptance_margin
    assert margins[1.0] is None
    assert margins[0.5].exp().item() == pytest.approx(2) and margins[5e-324].isfinite()

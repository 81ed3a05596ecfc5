"""The settings of a call."""

import torch
from decoded import generate
from helpers import (
    PROMPTS,
)

from wedlm.generation.parameters import default_window_size


def test_the_window_is_as_large_as_suits_the_device(model):
    settings = {"max_new_tokens": 40, "entropy_threshold": 100.0, "eos_token_id": None}
    on_a_cpu = generate(model, PROMPTS, **settings)
    assert on_a_cpu == generate(model, PROMPTS, **settings, window_size=None)
    assert on_a_cpu == generate(model, PROMPTS, **settings, window_size=8)
    assert on_a_cpu != generate(model, PROMPTS, **settings, window_size=16)
    assert [default_window_size(torch.device(device)) for device in ("cpu", "cuda", "mps")] == [8, 16, 16]

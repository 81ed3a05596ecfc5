"""vLLM in a process of its own writes what the model writes token by token; `make test-vllm` runs it."""

import sys
from pathlib import Path

import pytest
import torch

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER


@pytest.mark.vllm
def test_both_forms_write_what_the_model_writes(load_benchmark):
    ways = load_benchmark("evidence_real_ways")
    model = WeDLMForCausalLM.from_pretrained(DEMO_FOLDER, dtype="float32").eval()
    prompts = [torch.arange(20, 20 + length).tolist() for length in (5, 9)]
    expected = ways.way_of(model, decoding="autoregressive")(prompts, 24).tokens
    environment = Path(sys.prefix)
    with ways.vllm_ways(environment, DEMO_FOLDER, "float32", 256, 2, 1, eager=True) as made:
        assert list(made) == [ways.VLLM, ways.VLLM_DRAFTING]
        for write in made.values():
            assert write(prompts, 24).tokens == expected
    assert ways.vllm_version(environment)

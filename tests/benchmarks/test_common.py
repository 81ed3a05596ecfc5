"""vLLM in a process of its own writes what the model writes."""

import sys
from pathlib import Path

import pytest
import torch

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER


@pytest.mark.vllm
def test_both_forms_of_vllm_write_what_the_model_writes(load_benchmark):
    common = load_benchmark("common")
    model = WeDLMForCausalLM.from_pretrained(DEMO_FOLDER, dtype="float32").eval()
    prompts = [torch.arange(20, 20 + length).tolist() for length in (5, 9)]
    expected = common.way_of(model, decoding="autoregressive")(prompts, 24).tokens
    with common.vllm_ways(Path(sys.prefix), DEMO_FOLDER, "float32", 256, 2, 1, eager=True) as made:
        assert list(made) == [common.VLLM, common.VLLM_DRAFTING]
        for write in made.values():
            assert write(prompts, 24).tokens == expected

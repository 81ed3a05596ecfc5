"""What the benchmarks share: prompts, and vLLM in a process of its own."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from wedlm import WeDLMForCausalLM
from wedlm.checkpoints.demo_folder import DEMO_FOLDER


def test_chats_are_conversations_up_to_a_length(load_benchmark):
    chat, tokenizer = load_benchmark("common").chat, AutoTokenizer.from_pretrained(DEMO_FOLDER)
    for length in (20, 300):
        messages = chat(tokenizer, 0, length)
        size = len(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
        assert messages[-1]["role"] == "user" and (len(messages) == 1 or length - 150 < size <= length)
    assert len(messages) > 1
    assert chat(tokenizer, 0, 300)[-1] != chat(tokenizer, 1, 300)[-1]


@pytest.mark.vllm
def test_both_forms_of_vllm_write_what_the_model_writes(load_benchmark):
    common = load_benchmark("common")
    model = WeDLMForCausalLM.from_pretrained(DEMO_FOLDER, dtype="float32").eval()
    prompts = [torch.arange(20, 20 + length).tolist() for length in (5, 9)]
    expected = common.way_of(model, decoding="autoregressive")(prompts, 24).tokens
    environment = Path(sys.prefix)
    with common.vllm_ways(environment, DEMO_FOLDER, "float32", 256, 2, 1, eager=True) as made:
        assert list(made) == [common.VLLM, common.VLLM_DRAFTING]
        for write in made.values():
            assert write(prompts, 24).tokens == expected
    assert common.vllm_version(environment)

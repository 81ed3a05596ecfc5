"""Prompts of the benchmarks: conversations about the demo's tasks up to a length, or random tokens."""

from itertools import count

import torch
from common import random_tokens
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from examples.demo.tasks import KINDS, held_out_examples, training_example


def question(number: int) -> str:
    """The held-out question with this number, in which the kinds of tasks take turns."""
    return held_out_examples(KINDS[number % len(KINDS)], number // len(KINDS) + 1)[-1].prompt


def chat(
    tokenizer: PreTrainedTokenizerBase, number: int, length: int, last: str | None = None
) -> list[dict[str, str]]:
    """A question, by default a held-out one, behind as many answered questions as fit into `length` tokens with it."""
    messages = [{"role": "user", "content": question(number) if last is None else last}]
    for position in count(1000 * number):
        longer = training_example(0, position).messages + messages
        if len(tokenizer.apply_chat_template(longer, add_generation_prompt=True)["input_ids"]) > length:
            return messages
        messages = longer


def prompts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, batch_size: int, length: int, number: int = 0
) -> dict[str, torch.Tensor]:
    """The batch with this number, in which the kinds of tasks take turns; of random tokens without a tokenizer."""
    if tokenizer is None:
        tokens = random_tokens(model, batch_size, length)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    chats = [chat(tokenizer, number * batch_size + i, length) for i in range(batch_size)]
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    ).to(model.device)

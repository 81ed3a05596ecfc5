"""The questions of examples as inputs of `generate()`."""

import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from wedlm.demo.tasks import Example

MAX_NEW_TOKENS = 160  # the longest right answer has 88


def batch_of(tokenizer: PreTrainedTokenizerBase, examples: list[Example], device: torch.device | str) -> BatchEncoding:
    """The questions of the examples in a batch, padded on the left.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer with a chat template.
        examples (`list[Example]`): The examples, whose answers are left out.
        device (`torch.device` or `str`): Where the inputs go.
    """
    chats = [example.messages[:1] for example in examples]
    return tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    ).to(device)

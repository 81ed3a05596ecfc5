"""Stop strings, which end a text and are no part of it."""

import torch
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase, StoppingCriteria

CHARACTER_TOKENS = 4  # the most tokens that make one character, which has at most 4 bytes


def as_list(stop_strings: list[str] | str | None) -> list[str]:
    if stop_strings is None:
        return []
    return stop_strings if isinstance(stop_strings, list) else [stop_strings]


def before_stop(text: str, stop_strings: list[str] | str | None) -> str:
    """The text up to the first stop string."""
    for stop in as_list(stop_strings):
        text = text.partition(stop)[0]
    return text


def before_possible_stop(text: str, stop_strings: list[str] | str | None) -> str:
    """The text up to the first stop string, or up to an end that the next tokens may make one."""
    text = before_stop(text, stop_strings)
    beginnings = (stop[:length] for stop in as_list(stop_strings) for length in range(1, len(stop)))
    return text[: len(text) - max((len(part) for part in beginnings if text.endswith(part)), default=0)]


class StopStrings(StoppingCriteria):
    """Ends a text with the token that completes a stop string, which may begin in the prompt.

    transformers' own criterion compares each stop string with every token of the vocabulary first, in seconds; this
    one reads the text as it is decoded.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the model.
        stop_strings (`list[str]`): The stop strings.
        prompt (`list[int]`): The prompt.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_strings: list[str], prompt: list[int]):
        self.tokenizer, self.stop_strings, self.num_read = tokenizer, stop_strings, len(prompt)
        self.num_characters = max(map(len, stop_strings)) - 1  # before the last token
        self.decoder = DecodeStream([], skip_special_tokens=False)
        self.last = self.cut(tokenizer.decode(prompt[-CHARACTER_TOKENS * (self.num_characters + 1) :]))
        self.is_met = False

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs) -> torch.BoolTensor:
        for token in input_ids[0, self.num_read :].tolist():
            self.read(self.decoder.step(self.tokenizer.backend_tokenizer, token) or "")
        self.num_read = input_ids.shape[1]
        return torch.full((len(input_ids),), self.is_met, device=input_ids.device)

    def read(self, new: str) -> None:
        """Looks for stop strings that end in a new part of the text."""
        text = self.last + new
        self.is_met = self.is_met or any(
            stop in text[max(0, len(self.last) - len(stop) + 1) :] for stop in self.stop_strings
        )
        self.last = self.cut(text)

    def cut(self, text: str) -> str:
        return text[len(text) - min(len(text), self.num_characters) :]

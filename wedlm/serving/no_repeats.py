"""`no_repeat_ngram_size` and `encoder_no_repeat_ngram_size`, at a cost for each token that no setting can raise."""

from secrets import randbelow

import torch
from transformers import LogitsProcessor

PRIME = 2**127 - 1
BASE = randbelow(PRIME)  # drawn, so that nobody can write two n-grams of one hash


class NoRepeats(LogitsProcessor):
    """Bans each token that would repeat an n-gram of the text, or of its prompt.

    It bans what transformers' own processors ban. Those look through the text for each token, some of their versions
    with a copy of all n-grams; this one notes each token once, under a rolling hash of the n - 1 tokens before it.

    Args:
        size (`int`): The tokens of an n-gram.
        prompt_length (`int`, *optional*): The tokens whose n-grams count; by default those of the whole text.
    """

    def __init__(self, size: int, prompt_length: int | None = None):
        self.size, self.prompt_length = size, prompt_length
        self.weight = pow(BASE, size - 1, PRIME)  # of the token that leaves the window
        self.tokens: list[int] = []
        self.window = 0  # the hash of the last n - 1 tokens
        self.followers: dict[int, set[int]] = {}  # the tokens that came behind n - 1 tokens with this hash

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        for token in input_ids[0, len(self.tokens) :].tolist():
            self.read(token)
        banned = self.followers.get(self.window) if len(self.tokens) >= self.size - 1 else None
        if not banned:
            return scores
        return scores.index_fill(1, torch.tensor(list(banned), device=scores.device), -torch.inf)

    def read(self, token: int) -> None:
        """Notes the next token of the text."""
        number = len(self.tokens)
        if number >= self.size - 1 and (self.prompt_length is None or number < self.prompt_length):
            self.followers.setdefault(self.window, set()).add(token)
        self.tokens.append(token)
        leaving = self.tokens[-self.size] + 1 if number >= self.size - 1 else 0
        self.window = (self.window * BASE + token + 1 - leaving * self.weight) % PRIME

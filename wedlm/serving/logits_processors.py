"""Logits processors of a request: OpenAI's penalties, n-grams that may not repeat, and log-probabilities."""

import threading
from secrets import randbelow
from typing import NamedTuple

import torch
from transformers import LogitsProcessor, PreTrainedTokenizerBase

PRIME = 2**127 - 1
BASE = randbelow(PRIME)  # drawn, so that nobody can write two n-grams of one hash
LEAST = -9999.0  # stands for minus infinity, which JSON does not know; OpenAI's own number


class Penalties(LogitsProcessor):
    """Lowers the score of each token by its count in the text so far, without the prompt."""

    is_stateless = True  # as transformers' own penalties: it counts anew in each call

    def __init__(self, presence_penalty: float, frequency_penalty: float, prompt_length: int):
        self.presence_penalty, self.frequency_penalty = presence_penalty, frequency_penalty
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        answer = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
        return scores - self.presence_penalty * (counts > 0) - self.frequency_penalty * counts


class NoRepeatNGrams(LogitsProcessor):
    """Bans what transformers' `no_repeat_ngram_size` and `encoder_no_repeat_ngram_size` ban, in constant time.

    Those look through the text for each token. This one reads each token once, and keeps the tokens that followed
    under a rolling hash of the n - 1 tokens before. With `prompt_length` only the n-grams of the prompt count.
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
        number = len(self.tokens)
        if number >= self.size - 1 and (self.prompt_length is None or number < self.prompt_length):
            self.followers.setdefault(self.window, set()).add(token)
        self.tokens.append(token)
        leaving = self.tokens[-self.size] + 1 if number >= self.size - 1 else 0
        self.window = (self.window * BASE + token + 1 - leaving * self.weight) % PRIME


class Logprob(NamedTuple):
    token: int
    value: float


class TokenLogprobs(LogitsProcessor):
    """Records the log-probabilities of each token and of the likeliest ones, and changes nothing.

    It is the last processor of a request, so penalties, biases and grammars count, and temperature and cuts such as
    top_p do not. The last distribution at a position is that of its token, in verified decoding too.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_length: int, number: int):
        self.tokenizer, self.prompt_length, self.number = tokenizer, prompt_length, number
        self.lock = threading.Lock()  # The event loop reads while the batch writes.
        self.last: tuple[int, torch.Tensor] | None = None  # the last position, and its log-probabilities
        self.recorded: dict[int, tuple[Logprob, list[Logprob]]] = {}
        self.num_taken, self.num_characters = 0, 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        position = input_ids.shape[1] - self.prompt_length
        with self.lock:
            if self.last is not None and self.last[0] < position:
                self.record(int(input_ids[0, self.prompt_length + self.last[0]]))
            self.last = position, scores[0].float().log_softmax(-1)
        return scores

    def record(self, token: int) -> None:
        """Keeps the best of the last distribution, now that its token is known."""
        position, row = self.last
        best = row.topk(min(self.number, len(row)))
        likely = [Logprob(*pair) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        self.recorded[position] = Logprob(token, float(row[token])), [each for each in likely if each.value > LEAST]

    def take(self, tokens: list[int]) -> list[tuple[Logprob, list[Logprob]]]:
        """The entries of the next tokens, without special tokens."""
        with self.lock:
            positions = range(self.num_taken, self.num_taken + len(tokens))
            if self.last is not None and self.last[0] in positions:
                self.record(tokens[self.last[0] - self.num_taken])
            self.num_taken += len(tokens)
            entries = [self.recorded.pop(position) for position in positions]
        special = self.tokenizer.all_special_ids
        return [entry for entry in entries if entry[0].token not in special]

    def chat_form(self, tokens: list[int]) -> list[dict]:
        return [
            self.chat_entry(own) | {"top_logprobs": [self.chat_entry(each) for each in likely]}
            for own, likely in self.take(tokens)
        ]

    def chat_entry(self, logprob: Logprob) -> dict:
        text = self.tokenizer.decode([logprob.token])
        is_part = "\ufffd" in text  # of a character
        return {
            "token": text,
            "bytes": None if is_part else list(text.encode()),
            "logprob": max(logprob.value, LEAST),
        }

    def completion_form(self, tokens: list[int]) -> dict:
        form = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for own, likely in self.take(tokens):
            text = self.tokenizer.decode([own.token])
            form["tokens"].append(text)
            form["token_logprobs"].append(max(own.value, LEAST))
            form["top_logprobs"].append({self.tokenizer.decode([each.token]): each.value for each in likely})
            form["text_offset"].append(self.num_characters)
            self.num_characters += len(text)
        return form

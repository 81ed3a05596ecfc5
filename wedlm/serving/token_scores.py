"""`logprobs`: how likely the tokens of an answer were, and which others were likely there."""

import threading
from typing import NamedTuple

import torch
from transformers import LogitsProcessor, PreTrainedTokenizerBase

LEAST = -9999.0  # stands for minus infinity, which JSON does not know; OpenAI's own number


class Likely(NamedTuple):
    """A token with its log-probability.

    Args:
        token (`int`): The token.
        logprob (`float`): Its log-probability.
    """

    token: int
    logprob: float


class TokenScores(LogitsProcessor):
    """Notes the distribution of each token, and changes nothing.

    It is the last processor of a request, so penalties, biases and grammars count, and temperature and cuts such as
    top_p do not. A text is read in order, so the last distribution noted at a position is that of its token: the
    judge's, in verified decoding.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer of the model.
        prompt_length (`int`): The tokens in front of the answer.
        number (`int`): The number of likely tokens that are told beside each token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_length: int, number: int):
        self.tokenizer, self.prompt_length, self.number = tokenizer, prompt_length, number
        self.lock = threading.Lock()  # The answer is read in another thread.
        self.last: tuple[int, torch.Tensor] | None = None  # the last position, and its log-probabilities
        self.noted: dict[int, tuple[Likely, list[Likely]]] = {}
        self.num_told, self.num_characters = 0, 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        position = input_ids.shape[1] - self.prompt_length
        with self.lock:
            if self.last is not None and self.last[0] < position:
                self.note(int(input_ids[0, self.prompt_length + self.last[0]]))
            self.last = position, scores[0].float().log_softmax(-1)
        return scores

    def note(self, token: int) -> None:
        """Notes the token of the last position, whose distribution nobody needs as a whole then."""
        position, row = self.last
        best = row.topk(min(self.number, len(row)))
        likely = [Likely(*pair) for pair in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
        self.noted[position] = Likely(token, float(row[token])), [each for each in likely if each.logprob > LEAST]

    def told(self, tokens: list[int]) -> list[tuple[Likely, list[Likely]]]:
        """The next tokens of the answer with the likely ones of their positions; special tokens are no part of it."""
        with self.lock:
            positions = range(self.num_told, self.num_told + len(tokens))
            for position, token in zip(positions, tokens, strict=True):
                if self.last is not None and self.last[0] == position:
                    self.note(token)
            self.num_told += len(tokens)
            entries = [self.noted.pop(position) for position in positions]
        special = self.tokenizer.all_special_ids
        return [entry for entry in entries if entry[0].token not in special]

    # --- In OpenAI's form ---

    def of_chat(self, tokens: list[int]) -> list[dict]:
        """The entries of the next tokens, as chats tell them."""
        return [
            self.entry(own) | {"top_logprobs": [self.entry(each) for each in likely]}
            for own, likely in self.told(tokens)
        ]

    def of_completion(self, tokens: list[int]) -> dict:
        """The entries of the next tokens, as completions tell them."""
        form = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for own, likely in self.told(tokens):
            text = self.text(own)
            form["tokens"].append(text)
            form["token_logprobs"].append(max(own.logprob, LEAST))
            form["top_logprobs"].append({self.text(each): each.logprob for each in likely})
            form["text_offset"].append(self.num_characters)
            self.num_characters += len(text)
        return form

    def entry(self, likely: Likely) -> dict:
        text = self.text(likely)
        is_part = "\ufffd" in text  # of a character
        return {
            "token": text,
            "bytes": None if is_part else list(text.encode()),
            "logprob": max(likely.logprob, LEAST),
        }

    def text(self, likely: Likely) -> str:
        return self.tokenizer.decode([likely.token])

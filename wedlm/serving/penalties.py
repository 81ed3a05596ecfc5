"""OpenAI's penalties for tokens that the answer has already."""

import torch
from transformers import LogitsProcessor


class Penalties(LogitsProcessor):
    """Lowers the score of each token by what it did in the answer so far; the prompt does not count.

    score - presence_penalty * (count > 0) - frequency_penalty * count

    Args:
        presence_penalty (`float`): For a token that the answer has.
        frequency_penalty (`float`): For each time that the answer has it.
        prompt_length (`int`): The tokens in front of the answer.
    """

    is_stateless = True  # as transformers' own penalties: it counts anew in each call

    def __init__(self, presence_penalty: float, frequency_penalty: float, prompt_length: int):
        self.presence_penalty, self.frequency_penalty = presence_penalty, frequency_penalty
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        answer = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, answer, torch.ones_like(answer, dtype=scores.dtype))
        return scores - self.presence_penalty * (counts > 0) - self.frequency_penalty * counts

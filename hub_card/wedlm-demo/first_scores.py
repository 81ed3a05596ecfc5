"""Refuses scores that are not a number, from which transformers' own loop would take a token."""

import torch
from transformers import LogitsProcessor

from .support import NoTokenError


class FirstScores(LogitsProcessor):
    """Looks at the first scores of a call. (A look at each would make the host wait for the device at each token.)"""

    def __init__(self):
        self.is_first = True

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if self.is_first and scores.isnan().any():
            row = scores.isnan().any(-1).nonzero()[0].item()
            raise NoTokenError(
                f"The scores of row {row} at its first new token are not a number; look for NaN in the weights, or "
                "load them in another dtype."
            )
        self.is_first = False
        return scores

from dataclasses import dataclass

import torch
from transformers.generation import GenerateDecoderOnlyOutput


@dataclass
class WeDLMGenerateOutput(GenerateDecoderOnlyOutput):
    """What `generate(return_dict_in_generate=True)` returns: transformers' output, and three counts per row.

    - `forwards`: forwards in which the row was alive, the one with the prompt included.
    - `tokens_per_forward`: tokens / forwards; tokens up to and including the end token, padding left out.
    - `prefix_cacheability`: tokens / max(window rows processed, tokens), Eq. 4 of the paper; 1 if every window row
      became a token at once.
    """

    forwards: torch.LongTensor | None = None  # [batch]
    tokens_per_forward: torch.FloatTensor | None = None  # [batch]
    prefix_cacheability: torch.FloatTensor | None = None  # [batch]


def statistics(tokens: torch.Tensor, forwards: torch.Tensor, window_rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The three counts of an output from what was counted, all `[batch]`."""
    return {
        "forwards": forwards,
        "tokens_per_forward": tokens / forwards,
        "prefix_cacheability": tokens / torch.maximum(window_rows, tokens),
    }

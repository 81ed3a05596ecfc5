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

    And for decoding="verified" two more, a column for each distance from the last token known, 1 to window_size - 1
    (or max_new_tokens - 1):

    - `judged_drafts`: how many drafts at this distance were judged, those before them having been accepted.
    - `accepted_drafts`: how many of them were accepted.
    """

    forwards: torch.LongTensor | None = None  # [batch]
    tokens_per_forward: torch.FloatTensor | None = None  # [batch]
    prefix_cacheability: torch.FloatTensor | None = None  # [batch]
    judged_drafts: torch.LongTensor | None = None  # [batch, window_size - 1]
    accepted_drafts: torch.LongTensor | None = None  # [batch, window_size - 1]


def statistics(tokens: torch.Tensor, forwards: torch.Tensor, window_rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The three counts of an output from what was counted, all `[batch]`."""
    return {
        "forwards": forwards,
        "tokens_per_forward": tokens / forwards,
        "prefix_cacheability": tokens / torch.maximum(window_rows, tokens),
    }

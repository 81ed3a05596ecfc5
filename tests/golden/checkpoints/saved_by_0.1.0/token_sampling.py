from collections.abc import Callable

import torch
from transformers import LogitsProcessorList

MOST_SCORES = 2**24  # that are in float32 at a time


def over_slots(read: Callable, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What `read` says of every slot of logits `[batch, slots, vocabulary]`, each `[batch, slots]`.

    It is given a few slots at a time, float32 `[n, vocabulary]`, so that there never is such a copy of all of them.
    All slots are read, also those that are not selected: to know which are, the host would have to wait.
    """
    rows = logits.flatten(0, 1)
    size = max(1, MOST_SCORES // rows.shape[1])
    if torch.compiler.is_compiling() or len(rows) <= size:  # a compiler makes one pass of it, and no copy
        columns = read(rows.float())
    else:
        columns = map(torch.cat, zip(*(read(part.float()) for part in rows.split(size)), strict=True))
    return tuple(column.view(logits.shape[:2]) for column in columns)


def draw_tokens(scores: torch.Tensor, do_sample: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for every row of processed scores `[..., vocabulary]`, and whether there was any to choose."""
    scores = scores.float()
    best, tokens = scores.max(-1)
    if do_sample:
        # The Gumbel trick: torch.multinomial would make the host wait for its check of the probabilities.
        exponential = torch.empty_like(scores).exponential_().clamp_(min=torch.finfo(scores.dtype).tiny)
        tokens = (scores - exponential.log()).argmax(-1)
    return tokens, best > -torch.inf  # not where it is NaN


def processed(logits: torch.Tensor, processors: LogitsProcessorList) -> torch.Tensor:
    """Scores of slots, `[n, vocabulary]`, by processors that read no text: the ids they are handed are empty."""
    scores = logits.float()
    no_text = torch.empty(len(scores), 0, dtype=torch.long, device=scores.device)
    for processor in processors:  # one by one, as a compiler can't follow the list's own call
        scores = processor(no_text, scores)
    return scores

import torch
from transformers import LogitsProcessorList


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
    """Scores of slots, `[batch, slots, vocabulary]`.

    The processors read no text: each slot is a row of scores to them, and the ids they are handed are empty.
    """
    slots = logits.shape[:2]
    scores = logits.flatten(0, 1).float()  # [batch * slots, vocabulary]
    no_text = torch.empty(len(scores), 0, dtype=torch.long, device=scores.device)
    return processors(no_text, scores).unflatten(0, slots)


def choose_tokens(
    logits: torch.Tensor, processors: LogitsProcessorList, do_sample: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For every slot of logits `[batch, slots, vocabulary]`: a token, whether any was possible, the processed scores.

    All slots are chosen for, also those that are not selected: to know which are, the host would have to wait.
    """
    scores = processed(logits, processors)
    return *draw_tokens(scores, do_sample), scores

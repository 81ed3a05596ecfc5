import torch
from transformers import LogitsProcessorList


def choose_tokens(
    logits: torch.Tensor, processors: LogitsProcessorList, do_sample: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for every slot from logits `[batch, slots, vocabulary]`, and whether any had a finite score.

    The processors read no text: each slot is a row of scores to them, and the ids they are handed are empty. All slots
    are chosen for, also those that are not selected: to know which are, the host would have to wait.
    """
    batch, slots, vocabulary = logits.shape
    scores = logits.reshape(-1, vocabulary).to(torch.float32, copy=True)  # [batch * slots, vocabulary]
    no_text = torch.empty(len(scores), 0, dtype=torch.long, device=scores.device)
    scores = processors(no_text, scores)
    best, tokens = scores.max(-1)
    if do_sample:
        # The Gumbel trick: torch.multinomial would make the host wait for its check of the probabilities.
        exponential = torch.empty_like(scores).exponential_().clamp_(min=torch.finfo(scores.dtype).tiny)
        tokens = (scores - exponential.log()).argmax(-1)
    return tokens.view(batch, slots), best.isfinite().view(batch, slots)

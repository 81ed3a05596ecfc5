import torch
from transformers import LogitsProcessorList


def choose_tokens(logits: torch.Tensor, processors: LogitsProcessorList, do_sample: bool) -> torch.Tensor:
    """A token for every slot, `[batch, slots]`, from logits `[batch, slots, vocabulary]`.

    The processors read no text: each slot is a row of scores to them, and the ids they are handed are empty.
    """
    batch, slots, vocabulary = logits.shape
    scores = logits.reshape(-1, vocabulary).to(torch.float32, copy=True)  # [batch * slots, vocabulary]
    no_text = torch.empty(len(scores), 0, dtype=torch.long, device=scores.device)
    scores = processors(no_text, scores)
    tokens = scores.softmax(-1).multinomial(1) if do_sample else scores.argmax(-1)
    return tokens.view(batch, slots)

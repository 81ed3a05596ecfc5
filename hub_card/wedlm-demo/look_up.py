"""Drafts from the text itself: what followed when its last tokens stood there before."""

import torch
from torch.nn.functional import pad

MOST_MATCHED = 6  # Longer matches say no more about the next token.


def look_up(
    text: torch.Tensor, last: torch.Tensor, num_drafts: int, most_matched: int = MOST_MATCHED
) -> tuple[torch.Tensor, torch.Tensor]:
    """Finds the last place where the text's last tokens stand as well, and drafts what follows there.

    The place with the longest match is taken. Where the text behind it ends, the drafts begin again behind the match,
    so that a text that repeats itself goes on repeating.

    Args:
        text (`torch.LongTensor` of shape `(batch, columns)`): The text of each row without a gap before `last`, and
            in front of it numbers that are no tokens.
        last (`torch.LongTensor` of shape `(batch,)`): The column of each row's last token.
        num_drafts (`int`): The number of drafts.
        most_matched (`int`, *optional*, defaults to 6): The most last tokens that are compared,
            max_matching_ngram_size of the call.

    Returns:
        `tuple[torch.LongTensor, torch.LongTensor]`: The drafts `[batch, num_drafts]`, and the length of each row's
        match `[batch]`; it is 0 where there is none, and the drafts say nothing.
    """
    column, last = torch.arange(text.shape[1], device=text.device), last[:, None]
    endings = pad(text, (most_matched - 1, 0), value=-1).unfold(1, most_matched, 1)  # [batch, columns, matched]
    is_same = endings == endings.gather(1, last[..., None].expand(-1, -1, most_matched))
    # (A match ends where an earlier place has no more text: the last tokens have one there.)
    num_matched = is_same.flip(-1).cumprod(-1, dtype=torch.uint8).sum(-1) * (column < last)
    best = (num_matched * text.shape[1] + column).argmax(-1, keepdim=True)
    period = (last - best).clamp(min=1)
    place = torch.arange(num_drafts, device=text.device)
    return text.gather(1, (best + 1 + place % period).clamp(max=text.shape[1] - 1)), num_matched.gather(1, best)[:, 0]

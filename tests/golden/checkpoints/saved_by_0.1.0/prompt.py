from typing import NamedTuple

import torch
from transformers import logging

from .window import Text

logger = logging.get_logger(__name__)


class Prompt(NamedTuple):
    """What stands before the new tokens of every row: cached columns, and text still to go through the model."""

    is_text: torch.Tensor  # [batch, columns]: which columns hold a token, the cached ones in front
    num_cached: int  # columns
    text: Text  # what is not cached

    @property
    def cached_is_text(self) -> torch.Tensor:
        return self.is_text[:, : self.num_cached]

    @property
    def room(self) -> int:
        """The most entries that a forward with these tokens reads, before the window."""
        return self.num_cached + self.text.tokens.shape[1]

    def chunks(self, size: int | None) -> list[Text]:
        """The text, at most `size` tokens of a row at a time, so that every row has its last one in the last chunk."""
        tokens, lengths, positions = self.text
        width = tokens.shape[1]
        if size is None:
            return [self.text]
        parts = []
        for start in range(0, width, size):
            end = min(start + size, width)
            before, through = ((lengths - (width - column)).clamp(min=0) for column in (start, end))
            columns = before[:, None] + torch.arange(end - start, device=tokens.device)
            parts.append(Text(tokens.gather(1, columns.clamp(max=width - 1)), through - before, positions + before))
        return parts


def read_prompt(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    position_ids: torch.Tensor,
    num_cached: int,
    mask_token_id: int,
    max_new_tokens: int,
    max_position_embeddings: int,
) -> Prompt:
    """Input ids as wide as the mask are the whole text, narrower ones what follows the cached columns."""
    if len(input_ids) == 0:
        raise ValueError("input_ids holds no rows; pass at least one prompt.")
    batch, num_columns = input_ids.shape
    if num_columns == 0 and num_cached > 0:
        raise ValueError(
            "input_ids holds no tokens; pass the text whole, also what past_key_values holds of it, or at least its "
            "last token with a cache of what stands before that."
        )
    if attention_mask.shape == input_ids.shape:
        if num_cached > num_columns:
            raise ValueError(
                f"past_key_values holds {num_cached} columns, input_ids {num_columns}; pass the whole text, or what "
                f"follows the cached columns with an attention_mask over all {num_cached + num_columns}."
            )
        num_cached = min(num_cached, num_columns - 1)  # the last token is to be read, whatever is known
        new = input_ids[:, num_cached:]
    elif num_cached > 0 and attention_mask.shape == (batch, num_cached + num_columns):
        new = input_ids
    else:
        cached = f"past_key_values {num_cached} columns and " if num_cached > 0 else ""
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, {cached}input_ids {tuple(input_ids.shape)}; "
            "pass "
            + (
                f"a mask over all {num_cached + num_columns} columns with the ids that follow the cached ones, or one "
                "as wide as the ids of the whole text."
                if num_cached > 0
                else "the mask that the tokenizer made for these ids."
            )
        )
    is_text = attention_mask.bool()
    is_new = is_text[:, num_cached:]
    holds_mask, is_right_padded, is_empty, longest, is_elsewhere = torch.stack(
        [
            (new.eq(mask_token_id) & is_new).any(),
            (~is_text[:, -1:]).any(),
            (~is_text).all(-1).any(),
            is_text.sum(-1).max(),
            count_otherwise(position_ids, is_text),
        ]
    ).tolist()
    if holds_mask:
        raise ValueError(
            f"input_ids holds the MASK token, mask_token_id={mask_token_id}, which stands for a position still to be "
            "predicted; take it out of the prompt."
        )
    if is_empty:
        raise ValueError("input_ids holds an empty prompt; give every row at least one token, such as the BOS token.")
    if is_right_padded:
        raise ValueError(
            "attention_mask (made from pad_token_id if you passed none) has zeros behind a prompt; pad on the left "
            '(tokenizer.padding_side="left") and pass the mask of the tokenizer.'
        )
    if is_elsewhere:
        raise ValueError(
            "position_ids count otherwise than the ones of attention_mask do (0, 1, 2, ...), which only decoding="
            '"autoregressive" can follow; leave them out.'
        )
    if longest >= max_position_embeddings:
        raise ValueError(
            f"input_ids has {longest} tokens in a row, and this model has max_position_embeddings="
            f"{max_position_embeddings}; shorten the prompt."
        )
    if longest + max_new_tokens > max_position_embeddings:
        logger.warning(
            f"The prompt of {longest} tokens and max_new_tokens={max_new_tokens} reach beyond "
            f"max_position_embeddings={max_position_embeddings}; the text may get worse behind it."
        )
    tokens_first = (~is_new).int().argsort(dim=-1, stable=True)
    text = Text(new.gather(1, tokens_first), is_new.sum(-1), is_text[:, :num_cached].sum(-1))
    return Prompt(is_text, num_cached, text)


def count_otherwise(position_ids: torch.Tensor, is_text: torch.Tensor) -> torch.Tensor:
    """Whether position_ids, of the last columns or of all, are not 0, 1, 2, ... over the columns that hold text."""
    columns = is_text[:, -position_ids.shape[-1] :]
    if position_ids.shape not in (columns.shape, columns[:1].shape):
        return torch.tensor(True, device=is_text.device)
    expected = (is_text.cumsum(-1) - 1)[:, -columns.shape[1] :]
    return (columns & (position_ids != expected)).any()

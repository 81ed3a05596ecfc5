"""The prompts of a call: their text, left-aligned, and the checks that it can be decoded from."""

from typing import NamedTuple

import torch
from transformers import logging

from .support import check_in_vocabulary
from .transformers_internals import CACHE
from .window import Text

logger = logging.get_logger(__name__)


class Prompt(NamedTuple):
    """The text before the new tokens of every row, of which the first columns may be in a cache.

    Args:
        is_text (`torch.BoolTensor` of shape `(batch, columns)`): Whether a column holds a token, cached ones in front.
        num_cached (`int`): The number of cached columns.
        text (`Text`): The tokens that are not cached.
    """

    is_text: torch.Tensor
    num_cached: int
    text: Text

    @property
    def lengths(self) -> torch.Tensor:
        """The number of tokens of each row, `[batch]`."""
        return self.is_text.sum(-1)

    @property
    def cached_is_text(self) -> torch.Tensor:
        return self.is_text[:, : self.num_cached]

    @property
    def max_entries(self) -> int:
        """The most entries that a forward over the prompt reads."""
        return self.num_cached + self.text.tokens.shape[1]

    def chunks(self, size: int | None) -> list[Text]:
        """Cuts the text into chunks of at most `size` tokens a row; the last one holds every row's last token."""
        tokens, lengths, positions = self.text
        width = tokens.shape[1]
        if size is None:
            return [self.text]
        parts = []  # cut from the end, so that every row's last token falls into the last chunk
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
    vocab_size: int,
    max_new_tokens: int,
    max_position_embeddings: int,
) -> Prompt:
    """Reads the prompts of a call, and refuses those that cannot be decoded from.

    Args:
        input_ids (`torch.LongTensor` of shape `(batch, columns)`): The whole text if it is as wide as the mask, else
            the text behind the cached columns.
        attention_mask (`torch.Tensor` of shape `(batch, all columns)`): Which columns hold text.
        position_ids (`torch.LongTensor`): Must count the ones of the mask.
        num_cached (`int`): The number of columns that past_key_values holds.
        mask_token_id (`int`): The MASK token, which no prompt may hold.
        vocab_size (`int`): The number of tokens that the model knows.
        max_new_tokens (`int`): The room for new tokens.
        max_position_embeddings (`int`): The positions that the model was made for.
    """
    num_cached, new = split_cached(input_ids, attention_mask, num_cached)
    is_text = attention_mask.bool()
    is_new = is_text[:, num_cached:]
    findings = [
        ((new < 0) | (new >= vocab_size)).any(),
        (new.eq(mask_token_id) & is_new).any(),
        (~is_text).all(-1).any(),
        (~is_text[:, -1:]).any(),
        positions_differ(position_ids, is_text),
        is_text.sum(-1).max(),
    ]
    is_unknown, holds_mask, is_empty, is_right_padded, positions_are_other, longest = torch.stack(
        findings
    ).tolist()  # waits for the device
    if is_unknown:
        check_in_vocabulary(new, vocab_size)
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
    if positions_are_other:
        raise ValueError(
            "position_ids differ from 0, 1, 2, ... over the ones of attention_mask, and only "
            'decoding="autoregressive" can follow that; leave them out.'
        )
    check_length(longest, max_new_tokens, max_position_embeddings)
    tokens_first = (~is_new).int().argsort(dim=-1, stable=True)
    text = Text(new.gather(1, tokens_first), is_new.sum(-1), is_text[:, :num_cached].sum(-1))
    return Prompt(is_text, num_cached, text)


def split_cached(input_ids: torch.Tensor, attention_mask: torch.Tensor, num_cached: int) -> tuple[int, torch.Tensor]:
    """The number of cached columns in front of the new text, and the input ids of that text."""
    if len(input_ids) == 0:
        raise ValueError("input_ids holds no rows; pass at least one prompt.")
    batch, num_columns = input_ids.shape
    if num_columns == 0 and num_cached > 0:
        raise ValueError(
            f"input_ids holds no tokens; pass the text whole, also what {CACHE} holds of it, or at least its "
            "last token with a cache of what stands before that."
        )
    if attention_mask.shape == input_ids.shape:
        if num_cached > num_columns:
            raise ValueError(
                f"{CACHE} holds {num_cached} columns, input_ids {num_columns}; pass the whole text, or what "
                f"follows the cached columns with an attention_mask over all {num_cached + num_columns}."
            )
        num_cached = min(num_cached, num_columns - 1)  # the last token is read again, even if it is cached
        return num_cached, input_ids[:, num_cached:]
    if num_cached > 0 and attention_mask.shape == (batch, num_cached + num_columns):
        return num_cached, input_ids
    if num_cached == 0:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, input_ids {tuple(input_ids.shape)}; pass the "
            "mask that the tokenizer made for these ids."
        )
    raise ValueError(
        f"attention_mask has shape {tuple(attention_mask.shape)}, {CACHE} {num_cached} columns and input_ids "
        f"{tuple(input_ids.shape)}; pass a mask over all {num_cached + num_columns} columns with the ids that follow "
        "the cached ones, or one as wide as the ids of the whole text."
    )


def check_length(longest: int, max_new_tokens: int, max_position_embeddings: int) -> None:
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


def positions_differ(position_ids: torch.Tensor, is_text: torch.Tensor) -> torch.Tensor:
    """Whether position_ids, given for the last columns or for all, differ from 0, 1, 2, ... over the text."""
    columns = is_text[:, -position_ids.shape[-1] :]
    if position_ids.shape not in (columns.shape, columns[:1].shape):
        return torch.tensor(True, device=is_text.device)
    expected = (is_text.cumsum(-1) - 1)[:, -columns.shape[1] :]
    return (columns & (position_ids != expected)).any()

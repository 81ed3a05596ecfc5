import torch
from transformers import logging

logger = logging.get_logger(__name__)


def left_aligned_prompt(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, mask_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The prompts, their padding moved from the left to the right, `[batch, length]`, and their lengths, `[batch]`."""
    if len(input_ids) == 0:
        raise ValueError("input_ids holds no rows; pass at least one prompt.")
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)} and input_ids {tuple(input_ids.shape)}; pass the "
            "mask that the tokenizer made for these ids."
        )
    is_prompt = attention_mask.bool()
    lengths = is_prompt.sum(-1)
    holds_mask, is_right_padded, is_empty = torch.stack(
        [
            (input_ids.eq(mask_token_id) & is_prompt).any(),
            (is_prompt[:, :-1] & ~is_prompt[:, 1:]).any(),
            lengths.eq(0).any(),
        ]
    ).tolist()
    if holds_mask:
        raise ValueError(
            f"input_ids holds the MASK token, mask_token_id={mask_token_id}, which stands for a position still to be "
            "predicted; take it out of the prompt."
        )
    if is_right_padded:
        raise ValueError(
            "attention_mask (made from pad_token_id if you passed none) has zeros behind or between the tokens of a "
            'prompt; pad on the left (tokenizer.padding_side="left") and pass the mask of the tokenizer.'
        )
    if is_empty:
        raise ValueError("input_ids holds an empty prompt; give every row at least one token, such as the BOS token.")
    columns = torch.arange(input_ids.shape[1], device=input_ids.device)
    padding = input_ids.shape[1] - lengths
    source = (columns + padding[:, None]).clamp(max=input_ids.shape[1] - 1)
    return input_ids.gather(1, source), lengths


def check_lengths(prompt_length: int, max_new_tokens: int, max_position_embeddings: int) -> None:
    if prompt_length >= max_position_embeddings:
        raise ValueError(
            f"input_ids has {prompt_length} tokens in a row, and this model has max_position_embeddings="
            f"{max_position_embeddings}; shorten the prompt."
        )
    if prompt_length + max_new_tokens > max_position_embeddings:
        logger.warning(
            f"The prompt of {prompt_length} tokens and max_new_tokens={max_new_tokens} reach beyond "
            f"max_position_embeddings={max_position_embeddings}; the text may get worse behind it."
        )

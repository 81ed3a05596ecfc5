"""The output of generate(): sequences, and counts of the forwards that made them."""

from dataclasses import dataclass

import torch
from transformers import DynamicCache, GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput

from .text_readers import TextReaders
from .transformers_internals import CACHE, end_tokens_of, pad_token_of
from .window import Window, statistics


@dataclass
class WeDLMGenerateOutput(GenerateDecoderOnlyOutput):
    """The output of `generate(return_dict_in_generate=True)`: transformers' own, and counts for each row of the batch.

    Args:
        forwards (`torch.LongTensor` of shape `(batch,)`): Forwards in which the row was alive, the one with the prompt
            included.
        tokens_per_forward (`torch.FloatTensor` of shape `(batch,)`): New tokens, an end token included and padding
            left out, divided by `forwards`.
        prefix_cacheability (`torch.FloatTensor` of shape `(batch,)`): New tokens / max(queries of the window in all
            forwards, new tokens), the paper's Eq. 4; 1 if every query of the window became a token at once.
        judged_drafts (`torch.LongTensor` of shape `(batch, n)`, *optional*): Verified decoding only. The number of
            drafts judged at each distance from the last known token, 1 to n = window_size - 1 (or max_new_tokens - 1
            if that is less). A draft is judged when those before it have been accepted.
        accepted_drafts (`torch.LongTensor` of shape `(batch, n)`, *optional*): The number of them that were accepted.
    """

    forwards: torch.LongTensor | None = None
    tokens_per_forward: torch.FloatTensor | None = None
    prefix_cacheability: torch.FloatTensor | None = None
    judged_drafts: torch.LongTensor | None = None
    accepted_drafts: torch.LongTensor | None = None


def output_of(
    window: Window,
    input_ids: torch.Tensor,
    generation_config: GenerationConfig,
    past_key_values: DynamicCache | None,
    readers: TextReaders | None,
) -> WeDLMGenerateOutput | torch.LongTensor:
    """The prompts as they were given with their texts behind them, padded on the right; with counts if asked for."""
    place = torch.arange(int(window.num_tokens.max()), device=input_ids.device)
    tokens, pad_token = window.tokens[:, : len(place)], pad_token_of(generation_config)
    if pad_token is not None:
        tokens = torch.where(place < window.num_tokens[:, None], tokens, pad_token)
    sequences = torch.cat([input_ids, tokens], dim=-1)
    if not generation_config.return_dict_in_generate:
        return sequences
    return WeDLMGenerateOutput(
        sequences=sequences,
        **({} if readers is None else readers.records.of_text(window.num_tokens)),
        **{CACHE: past_key_values},
        **window.counts(),
    )


def autoregressive_output(
    output: GenerateDecoderOnlyOutput | torch.LongTensor, prompt_length: int, generation_config: GenerationConfig
) -> WeDLMGenerateOutput | torch.LongTensor:
    """Adds the counts to the output of transformers' own decoding: one forward, with one query, for each token."""
    if not generation_config.return_dict_in_generate:
        return output
    tokens = output.sequences[:, prompt_length:]
    num_tokens = torch.full_like(tokens[:, 0], tokens.shape[1])
    pad_token, end_tokens = pad_token_of(generation_config), end_tokens_of(generation_config)
    if pad_token is not None:
        is_padding = tokens.eq(pad_token).flip(-1).cumprod(-1)  # the run at the end
        num_tokens = num_tokens - is_padding.sum(-1)
    if end_tokens is not None:
        is_end = torch.isin(tokens, end_tokens)  # an end token may be the padding as well
        num_tokens = torch.where(is_end.any(-1), is_end.int().argmax(-1) + 1, num_tokens)
    return WeDLMGenerateOutput(**output, **statistics(num_tokens, num_tokens, num_tokens))

"""A call of generate() in a parallel decoding: its settings and its prompts, resolved and checked."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    logging,
)
from transformers.generation import BaseStreamer

from wedlm.generation.branches import BRANCHES
from wedlm.generation.callbacks import Callbacks, are_needed
from wedlm.generation.model_kind import SLIDING, ModelKind, kind_of, layer_types_of, masks_shift, max_positions_of
from wedlm.generation.parameters import default_query_cost, default_window_size
from wedlm.generation.sampling import SlotNoise, reads_no_text
from wedlm.generation.sequences import NO_TOKEN, Sequences, Settings, State, Strategy, Text
from wedlm.generation.streaming import STREAMING
from wedlm.generation.transformers_internals import CACHE, dropped_mask_length, end_tokens_of, is_passed_by_caller
from wedlm.generation.validation import check_in_vocabulary, check_rope, holds_all
from wedlm.generation.verified import VERIFIED

logger = logging.get_logger(__name__)


class Call:
    """What a call asks for. It refuses at once what cannot be decoded, and takes no memory for the text."""

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        **model_kwargs: Any,
    ):
        self.model, self.input_ids = model, input_ids
        self.processors, self.criteria = logits_processor, stopping_criteria
        self.generation_config, self.synced_gpus, self.streamer = generation_config, synced_gpus, streamer
        self.kind = kind_of(model)
        self.mask_token_id = self.kind.mask_token_id
        self.strategy = strategy_of(generation_config.decoding, self.mask_token_id)
        self.past_key_values: DynamicCache | None = model_kwargs.get(CACHE)
        self.max_new_tokens = max(1, stopping_criteria.max_length - input_ids.shape[1])
        self.has_callbacks = are_needed(logits_processor, stopping_criteria, streamer, generation_config)
        runs_on = input_ids.device if model.device.type == "meta" else model.device
        window_size, query_cost = generation_config.window_size, generation_config.query_cost
        self.query_cost = default_query_cost(runs_on) if query_cost is None else query_cost
        self.window_size = default_window_size(runs_on) if window_size is None else window_size
        if not self.is_static:  # Static steps have the same shape for every limit.
            self.window_size = min(self.window_size, self.max_new_tokens)
        self.prompt = read_prompt(self.kind, input_ids, self.max_new_tokens, generation_config, model_kwargs)
        check_rope(model, self.max_entries, generation_config)

    @property
    def is_static(self) -> bool:
        """Whether the cache is static, and forward passes have a few shapes. (With other ranks they are ordinary.)"""
        asked = self.generation_config.cache_implementation == "static" and self.past_key_values is not None
        return asked and not self.synced_gpus

    @property
    def returns_cache(self) -> bool:
        return self.generation_config.return_dict_in_generate or is_passed_by_caller(self.past_key_values)

    @property
    def max_entries(self) -> int:
        """The most entries of the cache that a forward pass reads."""
        prompt = self.prompt.num_cached + self.prompt.text.tokens.shape[1]
        return prompt + self.max_new_tokens + 2 * self.window_size

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """The rows, slots and tokens of the noise, where tokens are drawn."""
        return len(self.input_ids), 2 * self.window_size + 1, self.kind.config.vocab_size

    def begin(self, generator: torch.Generator | None = None) -> tuple[Settings, State, Callbacks | None]:
        """What the steps begin with; `generator` draws the tokens of a single row, in place of the device's own."""
        config, input_ids, device = self.generation_config, self.input_ids, self.input_ids.device
        end_tokens = end_tokens_of(config)
        settings = Settings(
            window_size=self.window_size,
            mask_token_id=self.mask_token_id,
            masks_shift=masks_shift(self.model),
            end_tokens=input_ids.new_empty(0, dtype=torch.long) if end_tokens is None else end_tokens,
            processors=self.processors,
            processors_read_text=not all(map(reads_no_text, self.processors)),
            arange=torch.arange(2 * self.window_size + 1, device=device),
            noise=SlotNoise(*self.noise_shape, device, generator) if config.do_sample else None,
            strategy=self.strategy,
            rule=self.strategy.rule(config, self.window_size, self.query_cost, device),
        )
        prompt, lengths = self.prompt.right_aligned(input_ids), self.prompt.lengths
        sequences = Sequences.of_prompts(prompt, lengths, self.max_new_tokens, settings.blank)
        callbacks = None
        if self.has_callbacks:
            callbacks = Callbacks(input_ids, self.max_new_tokens, settings, self.criteria, self.streamer, config)
        return settings, self.strategy.begin(sequences, settings), callbacks


def strategy_of(decoding: str, mask_token_id: int | None) -> Strategy:
    if decoding == "verified":
        return VERIFIED if mask_token_id is None else BRANCHES
    return STREAMING


class Prompt(NamedTuple):
    """The text before the new tokens of every row, of which the first columns may be in a cache."""

    is_text: Tensor  # [batch, columns]: whether a column holds a token, cached ones in front
    num_cached: int  # the number of cached columns
    text: Text  # the tokens that are not cached

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each row, `[batch]`."""
        return self.is_text.sum(-1)

    def right_aligned(self, input_ids: Tensor) -> Tensor:
        """The tokens of `input_ids`, moved to the right end of each row, with NO_TOKEN in front."""
        is_text = self.is_text[:, -input_ids.shape[1] :]
        gaps_first = is_text.int().argsort(dim=-1, stable=True)
        return input_ids.long().where(is_text, NO_TOKEN).gather(1, gaps_first)

    def chunks(self, size: int | None) -> list[Text]:
        """Cuts the text into chunks of at most `size` tokens a row; the last one holds every row's last token."""
        tokens, lengths, positions = self.text
        width = tokens.shape[1]
        if size is None:
            return [self.text]
        parts = []  # the bounds are those of right-aligned rows, so that every row ends with the last chunk
        for start in range(0, width, size):
            end = min(start + size, width)
            before, through = ((lengths - (width - column)).clamp(min=0) for column in (start, end))
            columns = before[:, None] + torch.arange(end - start, device=tokens.device)
            parts.append(Text(tokens.gather(1, columns.clamp(max=width - 1)), through - before, positions + before))
        return parts


def read_prompt(
    kind: ModelKind, input_ids: Tensor, max_new_tokens: int, generation_config: GenerationConfig, model_kwargs: dict
) -> Prompt:
    """Reads the prompts of a call, and refuses those that cannot be decoded from."""
    past, attention_mask = model_kwargs.get(CACHE), model_kwargs.get("attention_mask")
    vocab_size, mask_token_id = kind.config.vocab_size, kind.mask_token_id
    if attention_mask is None:  # transformers drops a mask of ones, and keeps its width
        width = dropped_mask_length(generation_config)
        attention_mask = input_ids.new_ones(len(input_ids), input_ids.shape[1] if width is None else width)
    num_cached = 0 if past is None else past.get_seq_length()
    num_cached, new = split_cached(input_ids, attention_mask, num_cached)
    is_text = attention_mask.bool()
    is_new = is_text[:, num_cached:]
    slides = SLIDING in layer_types_of(kind.config)
    findings = [
        (is_text[:, :-1] & ~is_text[:, 1:]).any() if slides else is_text.new_zeros(()),
        ((new < 0) | (new >= vocab_size)).any(),
        (new.eq(-1 if mask_token_id is None else mask_token_id) & is_new).any(),
        (~is_text).all(-1).any(),
        (~is_text[:, -1:]).any(),
        positions_differ(model_kwargs["position_ids"], is_text),
        is_text.sum(-1).max(),
        is_new.sum(-1).max(),
    ]
    has_gap, is_unknown, holds_mask, is_empty, is_right_padded, positions_are_other, longest, width = torch.stack(
        findings
    ).tolist()  # waits for the device
    if has_gap:
        raise ValueError(
            "attention_mask has zeros between the tokens of a row, which a model with sliding windows counts as "
            "tokens; put the tokens of each row together, behind the padding."
        )
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
    check_length(longest, max_new_tokens, max_positions_of(kind.model))
    tokens_first = (~is_new).int().argsort(dim=-1, stable=True)
    text = Text(new.gather(1, tokens_first[:, :width]), is_new.sum(-1), is_text[:, :num_cached].sum(-1))
    return Prompt(is_text, num_cached, text)


def split_cached(input_ids: Tensor, attention_mask: Tensor, num_cached: int) -> tuple[int, Tensor]:
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


def check_length(longest: int, max_new_tokens: int, max_position_embeddings: float) -> None:
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


def positions_differ(position_ids: Tensor, is_text: Tensor) -> Tensor:
    """Whether position_ids, given for the last columns or for all, differ from 0, 1, 2, ... over the text."""
    columns = is_text[:, -position_ids.shape[-1] :]
    if position_ids.shape not in (columns.shape, columns[:1].shape):
        return torch.tensor(True, device=is_text.device)
    expected = (is_text.cumsum(-1) - 1)[:, -columns.shape[1] :]
    return (columns & (position_ids != expected)).any()


# --- A call that fails ---


@contextmanager
def undone_on_error(cache: object, streamer: BaseStreamer | None) -> Iterator[None]:
    """Where a call fails, its cache gets the length that it had, and its streamer ends."""
    lengths = None
    if isinstance(cache, DynamicCache) and all(map(holds_all, cache.layers)):
        lengths = [layer.get_seq_length() for layer in cache.layers]
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the caller is to see the error of the call
            if streamer is not None:  # Another thread may iterate over it, and would wait for ever.
                streamer.end()
        with suppress(Exception):
            if lengths is not None:
                shorten(cache, lengths)
        raise


def shorten(cache: DynamicCache, lengths: list[int]) -> None:
    """Takes out what a failed call has put into a cache, perhaps into some layers only."""
    del cache.layers[len(lengths) :]
    for layer, length in zip(cache.layers, lengths, strict=True):
        if (more := layer.get_seq_length() - length) > 0:
            layer.crop(-more)

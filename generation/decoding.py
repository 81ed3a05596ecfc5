"""The loop of parallel decoding, from the prompt to the output."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput
from transformers.utils.generic import is_flash_attention_requested

from wedlm.generation.call import Call
from wedlm.generation.callbacks import Callbacks
from wedlm.generation.row_cache import RowCache, seen_entries
from wedlm.generation.sampling import SlotNoise
from wedlm.generation.static_steps import KEPT, StaticSteps, put_into
from wedlm.generation.stock import is_stock, masks_of_layers, stock_logits, within_positions
from wedlm.generation.streaming import BlockwiseWindow, StreamingWindow
from wedlm.generation.transformers_internals import (
    CACHE,
    check_is_filled,
    compile_on_any_device,
    end_tokens_of,
    has_hooks,
    has_unfinished_rows,
    pad_token_of,
    would_compile,
)
from wedlm.generation.validation import named_weights
from wedlm.generation.verified import VerifiedWindow
from wedlm.generation.window import Policy, Status, Window, WindowQueries, statistics

WINDOWS: dict[str, type[Window]] = {
    "streaming": StreamingWindow,
    "blockwise": BlockwiseWindow,
    "verified": VerifiedWindow,
}


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
        verified_drafts (`torch.LongTensor` of shape `(batch, n)`, *optional*): Verified decoding only. The number of
            drafts verified at each distance from the last token of the text, 1 to n = window_size - 1 (or
            max_new_tokens - 1 if that is less). A draft is verified when those before it have been accepted.
        accepted_drafts (`torch.LongTensor` of shape `(batch, n)`, *optional*): The number of them that were accepted.
    """

    forwards: torch.LongTensor | None = None
    tokens_per_forward: torch.FloatTensor | None = None
    prefix_cacheability: torch.FloatTensor | None = None
    verified_drafts: torch.LongTensor | None = None
    accepted_drafts: torch.LongTensor | None = None


class Decoding:
    """The decoding of a call: its whole `batch`, and the `window` and `cache` of the rows still in its forwards.

    Rows that have ended are dropped as soon as they are at least half of the rows in the window.
    """

    def __init__(self, call: Call):
        self.call, self.model, self.input_ids = call, call.model, call.input_ids
        self.policy, self.batch, self.callbacks = opened(call)
        self.window, self.num_alive = self.batch, len(self.input_ids)
        self.rows = list(range(self.num_alive))  # the rows of the batch that are in the window
        self.prompt_lengths = call.prompt.lengths.tolist()  # waits for the device
        self.num_chunks = 0  # of the prompt that are read in forwards before the first step
        self.max_committed = 0  # committed tokens of the row that has most, the prompt included
        # A hook may count on the rows of the batch, as that of PEFT's adapter_names does.
        self.rows_may_leave = self.num_alive > 1 and not has_hooks(self.model)
        self.static = StaticSteps.of(call, self.policy, self.window) if call.is_static else None
        if self.static is not None:
            self.cache = self.static.cache
        elif call.past_key_values is not None:
            columns = call.past_key_values, call.prompt.cached_is_text
            self.cache = RowCache.of_columns(*columns, call.max_entries, call.returns_cache)
        else:
            self.cache = None

    def run(self) -> WeDLMGenerateOutput | torch.Tensor:
        """Writes the texts; `take_step` says what a step does with its queries."""
        queries = self.read_prompt()
        while self.is_unfinished():
            valid_length = self.max_committed + queries.input_ids.shape[1]
            if self.num_alive == 0:  # With synced_gpus, every rank takes part in the forwards of the others.
                forward_queries(self.model, queries, self.cache, valid_length)
                continue
            status = take_step(self.model, self.policy, self.window, queries, self.cache, valid_length, self.callbacks)
            if self.static is not None:
                self.static.take_all(self.model, self.policy, self.window, status, *self.static_step())
                break
            read = self.window.read_status(status.tolist())  # waits for the device
            self.num_alive, self.max_committed = sum(read.alive), max(read.num_committed)
            self.draw_noise(read.num_committed, read.num_queries)
            self.drop_ended_rows(read)
            queries = self.window.queries(max(1, *read.num_queries), self.policy)
            if self.cache is None:
                queries = queries.behind(self.window.committed_text(self.call.prompt.text.tokens, self.max_committed))
        return self.output()

    def read_prompt(self) -> WindowQueries:
        """Takes all chunks of the prompt but the last into the cache; returns the queries of the first step."""
        *chunks, last = self.call.prompt.chunks(self.call.generation_config.prefill_chunk_size)
        self.num_chunks = len(chunks)
        for chunk in chunks:
            self.is_unfinished()  # With synced_gpus, announces the forward.
            valid_length = int(chunk.positions.max()) + chunk.tokens.shape[1]
            forward_queries(self.model, WindowQueries.of_text(chunk), self.cache, valid_length)
            self.cache.commit(chunk.lengths)
        self.max_committed = int(last.positions.max())
        self.draw_noise(self.prompt_lengths, self.window.num_queries.tolist())
        return self.window.first_queries(self.policy).behind(last)

    def is_unfinished(self) -> bool:
        return has_unfinished_rows(self.model, self.num_alive, self.call.synced_gpus, self.input_ids.device)

    def draw_noise(self, num_committed: list[int], num_queries: list[int]) -> None:
        """Draws the noise of the next forward of the window's rows; `num_committed` counts the prompts, too."""
        if self.policy.noise is not None:
            new = [n - self.prompt_lengths[row] for row, n in zip(self.rows, num_committed, strict=True)]
            limits = [self.call.max_new_tokens] * len(new)
            self.policy.noise.draw(self.rows, new, num_queries, limits)

    def drop_ended_rows(self, status: Status) -> None:
        """Goes on with the rows that are alive, where they are few enough to pay for copying their cache."""
        if self.rows_may_leave and 0 < 2 * self.num_alive <= len(self.window.alive):
            self.batch.put(self.window)
            kept = self.window.alive.int().argsort(descending=True, stable=True)[: self.num_alive]
            self.window = self.window.select(kept)
            self.rows = [row for row, alive in zip(self.rows, status.alive, strict=True) if alive]
            if self.cache is not None:
                self.cache.select(kept)

    def static_step(self) -> tuple[Callable, bool]:
        """The function that takes a static step, and whether it is compiled, as a compile_config asks for."""
        generation_config = self.call.generation_config
        if generation_config.compile_config is None:
            return static_step, False
        config = copy(generation_config.compile_config)
        compile_on_any_device(config)
        asked = GenerationConfig(compile_config=config, disable_compile=generation_config.disable_compile)
        if not would_compile(self.model, self.cache, asked):
            return static_step, False
        return torch.compile(static_step, **config.to_dict()), True

    def output(self) -> WeDLMGenerateOutput | torch.Tensor:
        """Returns the result of generate(); a cache that was passed in, or is returned, holds the text now."""
        call = self.call
        self.batch.put(self.window)  # A copy: the next call overwrites the buffers of static steps.
        self.batch.forwards = self.batch.forwards + self.num_chunks
        num_tokens, pad_token = self.batch.num_tokens, pad_token_of(call.generation_config)
        if self.policy.noise is not None:
            self.policy.noise.give_back(int(num_tokens.max()))
        if self.cache is not None and call.returns_cache:
            # It has as many columns of the new text as every row has in the cache.
            num_cached = int(torch.minimum(self.batch.start, num_tokens).min())
            is_text = pad(call.prompt.is_text, (0, num_cached), value=True)
            call.past_key_values.layers = self.cache.to_columns(is_text).layers
        if self.static is not None:
            KEPT[self.model] = self.static
        if call.streamer is not None:
            call.streamer.end()
        # The prompts are left as they were given; the texts behind them are padded on the right.
        place = torch.arange(int(num_tokens.max()), device=self.input_ids.device)
        tokens = self.batch.tokens[:, : len(place)]
        if pad_token is not None:
            tokens = torch.where(place < num_tokens[:, None], tokens, pad_token)
        sequences = torch.cat([self.input_ids, tokens], dim=-1)
        if not call.generation_config.return_dict_in_generate:
            return sequences
        records: dict[str, Any] = {} if self.callbacks is None else self.callbacks.records.of_text(num_tokens)
        return WeDLMGenerateOutput(
            sequences=sequences, **records, **{CACHE: call.past_key_values}, **self.batch.counts()
        )


def decode(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: BaseStreamer | None = None,
    **model_kwargs: Any,
) -> WeDLMGenerateOutput | torch.Tensor:
    """Decodes a batch, every row at its own pace, with the arguments that transformers gives its own loops."""
    processors, criteria = logits_processor, stopping_criteria
    call = Call(model, input_ids, processors, criteria, generation_config, synced_gpus, streamer, model_kwargs)
    with named_weights(model):
        return Decoding(call).run()


def opened(call: Call, generator: torch.Generator | None = None) -> tuple[Policy, Window, Callbacks | None]:
    """What a call begins with; `generator` draws the tokens of a single row, in place of the device's own."""
    config, input_ids, noise = call.generation_config, call.input_ids, None
    if config.do_sample:
        noise = SlotNoise(*call.noise_shape, input_ids.device, generator)
    policy = call.policy(noise)
    window = WINDOWS[config.decoding].opened(
        call.prompt.lengths, call.max_new_tokens, policy, call.prompt.right_aligned(input_ids)
    )
    callbacks = None
    if call.has_callbacks:
        callbacks = Callbacks(input_ids, call.max_new_tokens, policy, call.criteria, call.streamer, config)
    return policy, window, callbacks


def take_step(
    model: PreTrainedModel,
    policy: Policy,
    window: Window,
    queries: WindowQueries,
    cache: RowCache | None,
    valid_length: int,
    callbacks: Callbacks | None = None,
) -> torch.Tensor:
    """Takes one step: a forward, and what follows from its logits, `move_on`. Window and cache move on.

    The forward reads `valid_length` leading entries of the cache. Returns the `Status` of the window, `[4, batch]`.
    """
    # (The logits are held by nobody here, so that `move_on` can free them.)
    num_kept, status = move_on(
        policy, window, queries, forward_queries(model, queries, cache, valid_length), callbacks
    )
    if cache is not None:
        cache.commit(num_kept if queries.num_text is None else queries.num_text + num_kept)
    return status


def move_on(
    policy: Policy,
    window: Window,
    queries: WindowQueries,
    logits: torch.Tensor,
    callbacks: Callbacks | None = None,
    num_rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a step does with the logits of its forward, `[batch, predicted, vocabulary]`.

    1. Fill: slots of the window get their tokens.
    2. End: rows whose text is complete end.
    3. Advance: queries whose tokens are final stay in the cache, and the window moves on behind them.
    4. Report: a streamer gets what is final now.

    The next forward has `num_rows` rows, by default those of the window. Returns how many of the window's queries stay
    in the cache, `[batch]`, and the `Status` of the window, `[4, batch]`.
    """
    window.count_forward(queries)
    num_run, is_possible = window.fill(queries, logits, policy, callbacks)
    del logits
    if callbacks is None:
        window.end_at(num_run, policy)
    else:
        callbacks.end(window, window.behind_leading + num_run)
    num_kept = window.advance(num_run, policy, num_rows or len(window.start))
    if callbacks is not None:
        callbacks.report(window)
    return num_kept, window.status(queries.predicted_slots, is_possible)


def forward_queries(
    model: PreTrainedModel, queries: WindowQueries, cache: RowCache | None, valid_length: int
) -> torch.Tensor:
    """The logits of the queries that predict slots, `[batch, predicted, vocabulary]`."""
    home = queries.input_ids.device
    device = home if model.device.type == "meta" else model.device  # meta: offloaded, and moved by accelerate
    num_queries = queries.input_ids.shape[1]
    attention_mask: torch.Tensor | dict | None = None
    if cache is not None:
        # (Static steps need a mask: a compiled graph cannot hold flash-attn's function for caches.)
        knows_lengths = not (cache.is_static or is_stock(model)) and is_flash_attention_requested(model.config)
        needed = queries.num_needed
        attention_mask = cache.begin_forward(num_queries, valid_length, queries.visible_prefix, knows_lengths, needed)
    elif queries.visible_prefix is not None or is_stock(model):
        last = torch.arange(num_queries, device=home).expand_as(queries.input_ids)
        attention_mask = seen_entries(last, queries.visible_prefix, num_queries)
    queries = queries.to(device)
    attention_mask = None if attention_mask is None else attention_mask.to(device)
    if is_stock(model):
        starts = None if cache is None else cache.lengths
        queries = queries._replace(position_ids=within_positions(model, queries.position_ids))
        attention_mask = masks_of_layers(model, attention_mask, queries.position_ids, starts)
    inputs = {
        "input_ids": queries.input_ids,
        "position_ids": queries.position_ids,
        "attention_mask": attention_mask,
        "use_cache": cache is not None,
        "return_dict": True,
        CACHE: cache,
    }
    if is_stock(model):
        logits = stock_logits(model, inputs, queries.logits_indices)
    else:
        logits = model(**inputs, queries_to_keep=queries.logits_indices).logits
    if cache is not None:
        check_is_filled(cache.holds(valid_length))
    return logits.to(home)


def static_step(
    model: PreTrainedModel, policy: Policy, window: Window, cache: RowCache, query: torch.Tensor, valid: torch.Tensor
) -> torch.Tensor:
    """Takes a step that leaves the window in its buffers.

    It has as many queries in a row as `query` has elements, and reads as many entries as `valid` has.
    """
    moving = replace(window)
    queries = moving.queries(query.shape[0], policy)
    status = take_step(model, policy, moving, queries, cache, valid.shape[0])
    put_into(window, moving)
    return status


def autoregressive_output(
    output: Any, prompt_length: int, generation_config: GenerationConfig
) -> WeDLMGenerateOutput | torch.Tensor:
    """Adds the counts to the output of transformers' own decoding: one forward, with one query, for each token."""
    if not generation_config.return_dict_in_generate:
        return output
    tokens = output.sequences[:, prompt_length:]
    num_tokens = torch.full_like(tokens[:, 0], tokens.shape[1])
    pad_token, end_tokens = pad_token_of(generation_config), end_tokens_of(generation_config)
    if pad_token is not None:
        is_padding = tokens.eq(pad_token).flip(-1).cumprod(-1)  # the run at the end
        num_tokens = (num_tokens - is_padding.sum(-1)).clamp(min=1)  # (a token may be the padding as well)
    if end_tokens is not None:
        is_end = torch.isin(tokens, end_tokens)  # an end token may be the padding as well
        num_tokens = torch.where(is_end.any(-1), is_end.int().argmax(-1) + 1, num_tokens)
    return WeDLMGenerateOutput(**output, **statistics(num_tokens, num_tokens, num_tokens))

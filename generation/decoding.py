"""The loop of every parallel decoding: the prompt is read, then each step makes several tokens final."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from wedlm.generation.call import Call
from wedlm.generation.callbacks import Callbacks
from wedlm.generation.model_kind import ModelKind
from wedlm.generation.row_cache import RowCache
from wedlm.generation.sequences import Queries, Settings, State, Status, joined, statistics
from wedlm.generation.static_steps import KEPT, StaticSteps, put_into
from wedlm.generation.transformers_internals import (
    CACHE,
    compile_on_any_device,
    end_tokens_of,
    has_hooks_on,
    has_unfinished_rows,
    pad_token_of,
    would_compile,
)
from wedlm.generation.validation import named_weights


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


def decode(model: PreTrainedModel, *arguments: Any, **model_kwargs: Any) -> WeDLMGenerateOutput | Tensor:
    """Decodes a batch, every sequence at its own pace, with the arguments that transformers gives its own loops."""
    call = Call(model, *arguments, **model_kwargs)
    with named_weights(model):
        return Decoding(call).run()


class Decoding:
    """The loop of a call, over the sequences that are still in its forward passes.

    Those that have ended leave it when they are at least half of its rows.
    """

    def __init__(self, call: Call):
        self.call, self.model, self.forward = call, call.model, call.kind.forward
        self.settings, self.state, self.callbacks = call.begin()
        self.strategy = self.settings.strategy
        self.left: list[State] = []  # sequences that have left the loop
        self.rows = list(range(len(call.input_ids)))  # the number of each sequence in the loop
        self.num_alive = len(self.rows)
        self.prompt_lengths = call.prompt.lengths.tolist()  # waits for the device
        self.num_chunks = 0  # forward passes over chunks of the prompt, before the first step
        self.longest = 0  # committed tokens of the longest sequence, the prompt included
        # A hook may count on the rows of the batch, as that of PEFT's adapter_names does.
        may_leave = self.num_alive > 1 and not call.is_static
        self.rows_may_leave = may_leave and not has_hooks_on(self.model.modules())
        self.static = StaticSteps.of(call, self.settings, self.state) if call.is_static else None
        self.take_static: Callable[[int, int], Tensor] | None = None
        if self.static is not None:
            self.cache: RowCache | None = self.static.cache
            if call.has_callbacks:
                self.static.forward.renew(self.model)
                self.forward = partial(self.static.forward, call.kind)
        elif call.past_key_values is not None:
            columns = call.past_key_values, call.prompt.is_text[:, : call.prompt.num_cached]
            self.cache = RowCache.of_columns(*columns, call.max_entries, call.returns_cache)
        else:
            self.cache = None

    def run(self) -> WeDLMGenerateOutput | Tensor:
        """Writes the texts; `step` says what a step does with its queries."""
        queries = self.prefill()
        width = queries.input_ids.shape[1]
        while self.is_unfinished():
            if self.num_alive == 0:  # With synced_gpus, every rank takes part in the forward passes of the others.
                self.forward(queries, self.cache, self.longest + width)
                continue
            if self.take_static is not None:
                status = self.take_static(width, self.longest)
            else:
                self.state, status = step(
                    self.forward, self.settings, self.state, queries, self.cache, self.longest + width, self.callbacks
                )
            read = Status.read(status.tolist(), self.state.sequences)  # waits for the device
            self.num_alive, self.longest = sum(read.is_alive), max(read.num_committed)
            self.draw_noise(read.num_committed, read.num_queries)
            self.drop_ended(read)
            width = max(1, *read.num_queries)
            if self.static is None or self.call.has_callbacks:
                queries = self.strategy.queries(self.state, width, self.settings)
                if self.cache is None:
                    queries = queries.behind(self.state.sequences.committed_text(self.longest))
                    width = queries.input_ids.shape[1]
            elif self.take_static is None:  # The first step was an ordinary one, for it reads the prompt.
                self.state, self.take_static = self.static.begin(
                    self.call, self.settings, self.state, *self.step_to_take()
                )
        return self.output()

    def prefill(self) -> Queries:
        """Takes all chunks of the prompt but the last into the cache; returns the queries of the first step."""
        *chunks, last = self.call.prompt.chunks(self.call.generation_config.prefill_chunk_size)
        self.num_chunks = len(chunks)
        for chunk in chunks:
            self.is_unfinished()  # With synced_gpus, announces the forward pass.
            valid_length = int(chunk.positions.max()) + chunk.tokens.shape[1]
            self.forward(Queries.of_text(chunk), self.cache, valid_length)
            self.cache.commit(chunk.lengths)
        self.longest = int(last.positions.max())
        self.draw_noise(self.prompt_lengths, self.state.sequences.num_queries.tolist())
        return self.strategy.first_queries(self.state, self.settings).behind(last)

    def is_unfinished(self) -> bool:
        return has_unfinished_rows(self.model, self.num_alive, self.call.synced_gpus, self.call.input_ids.device)

    def draw_noise(self, num_committed: list[int], num_queries: list[int]) -> None:
        """Draws the noise of the next forward pass; `num_committed` counts the prompts, too."""
        if self.settings.noise is not None:
            new = [n - self.prompt_lengths[row] for row, n in zip(self.rows, num_committed, strict=True)]
            limits = [self.call.max_new_tokens] * len(new)
            self.settings.noise.draw(self.rows, new, num_queries, limits)

    def drop_ended(self, status: Status) -> None:
        """Goes on with the sequences that are alive, where they are few enough to pay for copying their cache."""
        if self.rows_may_leave and 0 < 2 * self.num_alive <= len(self.rows):
            order = self.state.sequences.is_alive.int().argsort(descending=True, stable=True)
            kept = order[: self.num_alive]
            self.left.append(self.state.select(order[self.num_alive :]))
            self.state = self.state.select(kept)
            self.rows = [row for row, alive in zip(self.rows, status.is_alive, strict=True) if alive]
            if self.cache is not None:
                self.cache.select(kept)

    def step_to_take(self) -> tuple[Callable, bool]:
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

    def output(self) -> WeDLMGenerateOutput | Tensor:
        """Returns the result of generate(); a cache that was passed in, or is returned, holds the text now."""
        call = self.call
        state = joined([*self.left, self.state])
        state = state.select(state.sequences.number.argsort())
        sequences = state.sequences._replace(forwards=state.sequences.forwards + self.num_chunks)
        num_tokens, pad_token = sequences.num_tokens, pad_token_of(call.generation_config)
        if self.settings.noise is not None:
            self.settings.noise.give_back(int(num_tokens.max()))
        if self.cache is not None and call.returns_cache:
            # All sequences share its columns, so it holds the new tokens that each of them has in the cache.
            num_cached = int(torch.minimum(sequences.num_committed, num_tokens).min())
            is_text = pad(call.prompt.is_text, (0, num_cached), value=True)
            call.past_key_values.layers = self.cache.to_columns(is_text).layers
        if self.static is not None:
            KEPT[self.model] = self.static
        if call.streamer is not None:
            call.streamer.end()
        # The prompts are left as they were given; the texts behind them are padded on the right.
        slot = torch.arange(int(num_tokens.max()), device=num_tokens.device)
        tokens = sequences.tokens[:, : len(slot)]
        if pad_token is not None:
            tokens = torch.where(slot < num_tokens[:, None], tokens, pad_token)
        ids = torch.cat([call.input_ids, tokens], dim=-1)
        if not call.generation_config.return_dict_in_generate:
            return ids
        records: dict[str, Any] = {} if self.callbacks is None else self.callbacks.records.of_text(num_tokens)
        of_all = statistics(num_tokens, sequences.forwards, sequences.window_queries)
        counts = of_all | self.strategy.counts(state, self.settings.window_size)
        return WeDLMGenerateOutput(sequences=ids, **records, **{CACHE: call.past_key_values}, **counts)


def step(
    forward: Callable,
    settings: Settings,
    state: State,
    queries: Queries,
    cache: RowCache | None,
    valid_length: int,
    callbacks: Callbacks | None = None,
) -> tuple[State, Tensor]:
    """One step: a forward pass, and what follows from its logits. The cache moves on, too.

    The forward pass reads `valid_length` leading entries of the cache. Returns the state behind the step, and its
    `Status`, `[4, batch]`.
    """
    # (No name holds the logits here, so `after_forward` can free them.)
    state, num_kept, status = after_forward(settings, state, queries, forward(queries, cache, valid_length), callbacks)
    if cache is not None:  # (a prompt in front stays whole)
        cache.commit(num_kept if queries.num_text is None else queries.num_text + num_kept)
    return state, status


def after_forward(
    settings: Settings,
    state: State,
    queries: Queries,
    logits: Tensor,
    callbacks: Callbacks | None = None,
    num_rows: int | None = None,
) -> tuple[State, Tensor, Tensor]:
    """What a step does with the logits of its forward pass, `[batch, predicted, vocabulary]`.

    1. Choose: slots get their tokens, and some of these are final.
    2. End: sequences whose text is complete end.
    3. Commit: queries whose tokens are final stay in the cache, and the next forward pass is planned.
    4. Report: a streamer gets what is final now.

    The next forward pass has `num_rows` rows, by default those of the state. Returns the state, how many of its
    queries stay in the cache, `[batch]`, and its `Status`, `[4, batch]`.
    """
    strategy = settings.strategy
    state, new, num_new, is_possible = strategy.choose(state, queries, logits, settings, callbacks)
    del logits
    sequences, kept = state
    if callbacks is None:
        sequences = sequences.ended(new, num_new, settings)
    else:
        sequences = callbacks.ended(sequences, num_new)
    state, num_kept = strategy.commit(State(sequences, kept), num_new, settings, num_rows or len(sequences.number))
    if callbacks is not None:
        callbacks.report(lambda: strategy.guesses(state))
    return state, num_kept, Status.tensor(state.sequences, queries.predicted_slots, is_possible)


def static_step(
    kind: ModelKind, settings: Settings, state: State, cache: RowCache, query: Tensor, entry: Tensor
) -> Tensor:
    """Takes a step that leaves the state in its buffers.

    It has as many queries for each sequence as `query` has elements, and reads as many entries as `entry` has.
    (Tensors, since torch.compile can be told which lengths of a tensor vary.)
    """
    queries = settings.strategy.queries(state, query.shape[0], settings)
    moved, status = step(kind.forward, settings, state, queries, cache, entry.shape[0])
    put_into(state, moved)
    return status


def autoregressive_output(
    output: Any, prompt_length: int, generation_config: GenerationConfig
) -> WeDLMGenerateOutput | Tensor:
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

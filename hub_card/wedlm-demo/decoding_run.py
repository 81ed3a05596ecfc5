"""One call of parallel decoding: its window, cache and readers, from the prompt to the output."""

from collections.abc import Callable
from copy import copy

import torch
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer

from .outputs import WeDLMGenerateOutput, output_of
from .parameters import default_query_cost, default_window_size
from .policy import Policy
from .prompt import Prompt, read_prompt
from .row_cache import RowCache
from .slot_noise import SlotNoise
from .static_memory import keep_static_steps
from .static_steps import StaticSteps, static_step
from .step import forward_queries, read_status, take_step
from .streaming import BlockwiseWindow, StreamingWindow
from .text_readers import TextReaders
from .transformers_internals import (
    CACHE,
    compile_on_any_device,
    dropped_mask_length,
    has_hooks,
    has_unfinished_rows,
    is_passed_by_caller,
    would_compile,
)
from .verified import VerifiedWindow
from .window import NO_TOKEN, Text, WindowQueries

WINDOWS = {"streaming": StreamingWindow, "blockwise": BlockwiseWindow, "verified": VerifiedWindow}


class DecodingRun:
    """One call of generate() in a parallel decoding.

    The run keeps the whole batch (`batch`) and the rows that are still in its forwards (`window`, `cache`). Rows that
    have ended are dropped as soon as they are at least half of the rows in the window.

    A run refuses at once what it cannot decode; it takes its memory when it is opened.

    Args:
        model (`PreTrainedModel`): The model.
        input_ids (`torch.LongTensor` of shape `(batch, columns)`): The prompts, as generate() got them.
        processors (`LogitsProcessorList`): The logits processors.
        criteria (`StoppingCriteriaList`): The stopping criteria.
        generation_config (`GenerationConfig`): The resolved generation config.
        synced_gpus (`bool`): Whether every rank takes part in each forward.
        streamer (`BaseStreamer`, *optional*): The streamer.
        model_kwargs (`dict`): attention_mask, position_ids and the cache, as generate() made them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool,
        streamer: BaseStreamer | None,
        model_kwargs: dict,
    ):
        self.model, self.input_ids, self.generation_config = model, input_ids, generation_config
        self.synced_gpus, self.streamer, self.criteria = synced_gpus, streamer, criteria
        mask_token_id, device = model.config.require_mask_token_id(), input_ids.device
        self.max_new_tokens = max(1, criteria.max_length - input_ids.shape[1])
        runs_on = device if model.device.type == "meta" else model.device
        self.past_key_values: DynamicCache | None = model_kwargs.get(CACHE)
        window_size, query_cost = generation_config.window_size, generation_config.query_cost
        window_size = default_window_size(runs_on) if window_size is None else window_size
        query_cost = default_query_cost(runs_on) if query_cost is None else query_cost
        self.policy = Policy.of(generation_config, processors, window_size, mask_token_id, device, query_cost)
        self.readers = self.make_readers()
        if not self.is_static:  # static steps have the same shape for every limit
            self.policy = self.policy._replace(window_size=min(window_size, self.max_new_tokens))
        self.prompt = prompt_of(model, input_ids, self.max_new_tokens, generation_config, model_kwargs)

    def make_readers(self) -> TextReaders | None:
        return TextReaders.if_needed(
            self.input_ids, self.max_new_tokens, self.policy, self.criteria, self.streamer, self.generation_config
        )

    def open(self, generator: torch.Generator | None = None, num_rows: int | None = None) -> None:
        """Takes the memory of the call.

        Args:
            generator (`torch.Generator`, *optional*): Draws the tokens of a single row, in place of the device's own.
            num_rows (`int`, *optional*): The rows of the running batch that the one row joins; by default the call's.
        """
        model, input_ids, window_size = self.model, self.input_ids, self.policy.window_size
        self.policy = self.policy.among(num_rows or len(input_ids))
        self.noise: SlotNoise | None = None
        if self.generation_config.do_sample:
            self.noise = SlotNoise(*self.noise_shape, input_ids.device, generator)
            self.policy = self.policy._replace(noise=self.noise.values)
        self.readers = self.make_readers()  # They read the noise as well.
        kind = WINDOWS[self.generation_config.decoding]
        self.batch = self.window = kind.opened(self.prompt.lengths, self.max_new_tokens, self.policy)
        if kind is VerifiedWindow and self.policy.num_looked_up > 0:
            is_text = self.prompt.is_text[:, -input_ids.shape[1] :]
            gaps_first = is_text.int().argsort(dim=-1, stable=True)
            self.window.prompt = input_ids.long().where(is_text, NO_TOKEN).gather(1, gaps_first)
        self.static: StaticSteps | None = None
        max_entries = self.prompt.max_entries + self.max_new_tokens + 2 * window_size
        self.cache: RowCache | None = self.make_cache(max_entries)
        self.num_alive = len(input_ids)
        self.longest = 0  # tokens of the longest row's committed text
        self.status: torch.Tensor | None = None  # as the last step left it, on the device
        # A hook may count on the rows of the batch, as that of PEFT's adapter_names does.
        self.rows_may_leave = self.num_alive > 1 and not has_hooks(model)

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """The rows, slots and tokens of the noise, where tokens are drawn."""
        # A static step may begin a whole step behind the slots that the host knows of.
        num_slots = (4 if self.is_static else 2) * self.policy.window_size + 1
        return len(self.input_ids), num_slots, self.model.config.vocab_size

    @property
    def returns_cache(self) -> bool:
        return self.generation_config.return_dict_in_generate or is_passed_by_caller(self.past_key_values)

    @property
    def is_static(self) -> bool:
        """Whether the steps have a fixed shape. Steps whose text is read, or that other ranks share, are ordinary."""
        asked = self.generation_config.cache_implementation == "static" and self.past_key_values is not None
        return asked and self.readers is None and not self.synced_gpus

    def make_cache(self, max_entries: int) -> RowCache | None:
        """A cache that begins with the text of past_key_values; static steps bring their own, which is empty."""
        config, past = self.generation_config, self.past_key_values
        if past is None:
            return None
        if self.is_static:
            asked_for = (getattr(config, "max_cache_len", None) or 0) + 2 * self.policy.window_size
            self.static = StaticSteps.of(self.model, self.policy, self.window, max(max_entries, asked_for))
            if self.noise is not None:
                self.noise.values = self.static.noise_buffer(self.noise.values)
                self.policy = self.policy._replace(noise=self.noise.values)
            return self.static.cache
        return RowCache.of_columns(past, self.prompt.cached_is_text, max_entries, self.returns_cache)

    # --- The loop ---

    def read_prompt(self) -> WindowQueries:
        """Takes all chunks of the prompt but the last into the cache; returns the queries of the first step."""
        *chunks, last = self.prompt.chunks(self.generation_config.prefill_chunk_size)
        for chunk in chunks:
            self.meet_other_ranks()
            self.read_chunk(chunk)
        return self.first_queries(last)

    def read_chunk(self, chunk: Text) -> None:
        """Takes a chunk of the prompt into the cache."""
        live = int(chunk.positions.max()) + chunk.tokens.shape[1]
        forward_queries(self.model, WindowQueries.of_text(chunk), self.cache, live)
        self.cache.commit(chunk.lengths)
        self.window.forwards = self.window.forwards + 1

    def first_queries(self, last: Text) -> WindowQueries:
        """The queries of the first step, behind the last chunk of the prompt."""
        self.longest = int(last.positions.max())
        return self.window.first_queries(self.policy).behind(last)

    def is_unfinished(self) -> bool:
        return has_unfinished_rows(self.model, self.num_alive, self.synced_gpus, self.input_ids.device)

    def meet_other_ranks(self) -> None:
        """With synced_gpus, announces a forward in which every rank takes part."""
        self.is_unfinished()

    def idle_step(self, queries: WindowQueries) -> WindowQueries:
        """Takes part in the forward of other ranks, with rows that have ended."""
        forward_queries(self.model, queries, self.cache, self.longest + queries.input_ids.shape[1])
        return queries

    def step(self, queries: WindowQueries) -> WindowQueries:
        """Takes a step; returns the queries of the next one."""
        live = self.longest + queries.input_ids.shape[1]
        self.draw_noise()
        self.status = take_step(self.model, self.policy, self.window, queries, self.cache, live, self.readers)
        if self.static is not None:
            return queries
        status = read_status(self.status.tolist(), self.window)
        self.num_alive, self.longest = sum(status.alive), max(status.num_committed)
        self.drop_ended_rows()
        queries = self.window.queries(max(1, *status.num_queries), self.policy)
        if self.cache is None:
            queries = queries.behind(self.window.committed_text(self.prompt.text.tokens, self.longest))
        return queries

    def draw_noise(self) -> None:
        """Draws the noise of all slots that the next forward can look at."""
        if self.noise is not None:
            ends = torch.minimum(self.window.start + self.window.num_queries + 1, self.window.limit)
            rows, ends = torch.stack([self.window.batch_rows, ends]).tolist()  # one look at the device
            self.noise.draw(rows, ends)

    def take_static_steps(self) -> None:
        """Takes all steps behind the first one, in their fixed shapes."""
        step = self.static_step()
        self.static.take_all(self.model, self.policy, self.window, self.status, step, self.noise)
        self.num_alive = 0

    def drop_ended_rows(self) -> None:
        """Goes on with the rows that are alive, where they are few enough to pay for copying their cache."""
        if self.rows_may_leave and 0 < 2 * self.num_alive <= len(self.window.alive):
            self.batch.put(self.window)
            kept = self.window.alive.int().argsort(descending=True, stable=True)[: self.num_alive]
            self.window = self.window.select(kept)
            self.policy = self.policy.among(self.num_alive)
            if self.cache is not None:
                self.cache.select(kept)

    def static_step(self) -> Callable:
        """The function that takes a static step, compiled where transformers would, or if compile_config is given."""
        config = copy(self.generation_config.compile_config)
        if config is not None:
            compile_on_any_device(config)
        asked = GenerationConfig(compile_config=config, disable_compile=self.generation_config.disable_compile)
        if not would_compile(self.model, self.cache, asked):
            return static_step
        config = config or CompileConfig()
        return torch.compile(static_step, **config.to_dict())

    # --- The end ---

    def finish(self) -> WeDLMGenerateOutput | torch.LongTensor:
        """Returns the result of generate(); a cache that was passed in, or is returned, holds the text now.

        `put` also copies: an output must not share the buffers of static steps, which the next call overwrites.
        """
        self.batch.put(self.window)
        if self.noise is not None:
            self.noise.give_back(int(self.batch.num_tokens[0]))
        if self.cache is not None and self.returns_cache:
            self.past_key_values.layers = self.cached_columns().layers
        if self.static is not None:
            keep_static_steps(self.model, self.static)
        if self.streamer is not None:
            self.streamer.end()
        return output_of(self.batch, self.input_ids, self.generation_config, self.past_key_values, self.readers)

    def cached_columns(self) -> DynamicCache:
        """An ordinary cache over as many columns of the text as every row has in the cache."""
        num_cached = int(torch.minimum(self.batch.start, self.batch.num_tokens).min())
        is_text = self.prompt.is_text
        return self.cache.to_columns(torch.cat([is_text, is_text.new_ones(len(is_text), num_cached)], dim=-1))


def prompt_of(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    max_new_tokens: int,
    generation_config: GenerationConfig,
    model_kwargs: dict,
) -> Prompt:
    """Reads the prompts from what generate() hands to a decoding."""
    past, attention_mask = model_kwargs.get(CACHE), model_kwargs.get("attention_mask")
    if attention_mask is None:  # transformers drops a mask of ones, and keeps its width
        width = dropped_mask_length(generation_config)
        attention_mask = input_ids.new_ones(len(input_ids), input_ids.shape[1] if width is None else width)
    return read_prompt(
        input_ids,
        attention_mask,
        model_kwargs["position_ids"],
        0 if past is None else past.get_seq_length(),
        model.config.mask_token_id,
        model.config.vocab_size,
        max_new_tokens,
        model.config.max_position_embeddings,
    )

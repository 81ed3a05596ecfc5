from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import wraps
from inspect import signature
from typing import Any

import torch
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.generation import (
    BaseStreamer,
    GenerateDecoderOnlyOutput,
    GenerationMode,
    SuppressTokensLogitsProcessor,
)

from wedlm.generation.policy import Policy, what_suits
from wedlm.generation.prompt import Prompt, read_prompt
from wedlm.generation.row_cache import RowCache
from wedlm.generation.static_steps import StaticSteps, left, static_step
from wedlm.generation.stats import WeDLMGenerateOutput, statistics
from wedlm.generation.step import forward_rows, read_status, take_step
from wedlm.generation.support import DEFAULTS, check_parameters, check_support, refuse
from wedlm.generation.text_readers import PLAIN_PROCESSORS, TextReaders
from wedlm.generation.verified import VerifiedWindow
from wedlm.generation.window import Text, Window, WindowQueries


class WeDLMGenerationMixin(GenerationMixin):
    """`generate()` of a WeDLM model: several tokens per forward, unless decoding="autoregressive" asks for one.

    Four parameters live on `generation_config` and can be passed to `generate()`:

    - `decoding`: "streaming" (default) fills slots of a window and commits each as soon as none before it is open;
      "blockwise" commits a window when it is full; "verified" writes the autoregressive text, in forwards that judge
      the drafts of those before; "autoregressive" is transformers' own. None produces MASK.
    - `window_size`: slots behind the committed text, at least 1.
    - `entropy_threshold`: slots whose entropy in nats is below it are filled; None fills one slot per forward.
    - `distance_penalty`: added to the entropy of a slot for each slot from the first open one to it.
    """

    @property
    def generation_config(self) -> GenerationConfig:
        return self._generation_config

    @generation_config.setter
    def generation_config(self, generation_config: GenerationConfig) -> None:
        """The config becomes the model's own: what it lacks of the four parameters is added to it."""
        for name, default in DEFAULTS.items():
            if not hasattr(generation_config, name):
                setattr(generation_config, name, default)
        # A config that says it was made from the model config loses these four when it is loaded again.
        generation_config._from_model_config = False
        self._generation_config = generation_config

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, **kwargs: Any
    ) -> tuple[GenerationConfig, dict]:
        # The four are set last: to transformers None means "not given", and entropy_threshold=None says something.
        given = (
            {name: vars(generation_config)[name] for name in DEFAULTS.keys() & vars(generation_config).keys()}
            if generation_config is not None
            else {}
        )
        given |= {name: kwargs.pop(name) for name in DEFAULTS.keys() & kwargs.keys()}
        defaults = {name: getattr(self.generation_config, name) for name in DEFAULTS}
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, value in (defaults | given).items():
            setattr(generation_config, name, value)
        check_parameters(generation_config)
        if generation_config.decoding != "autoregressive":
            check_support(self, generation_config, model_kwargs)
        return generation_config, model_kwargs

    def _validate_generation_mode(self, generation_mode, generation_config, generation_mode_kwargs):
        if generation_config.decoding != "autoregressive":
            if "assistant_model" in generation_mode_kwargs:
                refuse("assistant_model", type(generation_mode_kwargs["assistant_model"]).__name__, generation_config)
            if generation_mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
                refuse("generation mode", generation_mode.value, generation_config)
        super()._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)

    def _get_logits_processor(self, *args, device=None, **kwargs) -> LogitsProcessorList:
        processors = super()._get_logits_processor(*args, device=device, **kwargs)
        if self.config.mask_token_id is not None:
            # (An offloaded model's own device is meta.)
            ban = SuppressTokensLogitsProcessor([self.config.mask_token_id], device=device or self.device)
            if any(type(processor) not in PLAIN_PROCESSORS for processor in processors):
                processors.append(ban)  # also against a processor that sets scores of its own
            processors.insert(0, ban)  # so that none sees a score for MASK
        return processors

    @wraps(GenerationMixin.generate)
    def generate(self, *args, **kwargs):
        cache = kwargs.get("past_key_values")
        lengths = [layer.get_seq_length() for layer in cache.layers] if isinstance(cache, DynamicCache) else None
        try:
            return super().generate(*args, **kwargs)
        except BaseException:
            if lengths is not None:
                shorten(cache, lengths)
            # Or whoever iterates over the streamer in another thread waits for ever.
            streamer = signature(GenerationMixin.generate).bind(self, *args, **kwargs).arguments.get("streamer")
            if streamer is not None:
                with suppress(Exception):  # the error of the call is the one to be seen
                    streamer.end()
            raise

    def _prepare_cache_for_generation(self, generation_config: GenerationConfig, model_kwargs: dict, *args):
        """No StaticCache for parallel decoding, whose static steps have a cache of their own."""
        asked = generation_config.cache_implementation
        if generation_config.decoding != "autoregressive" and model_kwargs.get("past_key_values") is None:
            generation_config.cache_implementation = None
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        generation_config.cache_implementation = asked

    def generate_batch(self, inputs, generation_config: GenerationConfig | None = None, **kwargs):
        given = {name: kwargs.pop(name) for name in DEFAULTS.keys() & kwargs.keys()}
        config, _ = self._prepare_generation_config(generation_config, **given)
        return super().generate_batch(inputs, generation_config=config, **kwargs)

    def init_continuous_batching(self, generation_config: GenerationConfig | None = None, *args, **kwargs):
        config, _ = self._prepare_generation_config(generation_config)
        if config.decoding != "autoregressive":
            refuse("continuous batching", "generate_batch or cache_implementation='paged'", config)
        return super().init_continuous_batching(generation_config, *args, **kwargs)

    def _sample(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        **model_kwargs,
    ) -> WeDLMGenerateOutput | torch.LongTensor:
        """Streaming, blockwise or verified decoding of a batch, every row at its own pace.

        1. Forward: the filled slots of the window, then a MASK per open slot; the first has the prompt in front.
           (Verified: the last token known, drafts, then MASK rows.)
        2. Fill: a token for every open slot that is selected.
           (Verified: for every judged slot, up to the first refuted draft.)
        3. Commit: what stood before the first open slot, or was accepted, is final, and stays in the cache.
        4. Advance: rows whose text is complete end; the others get new open slots behind the window.
        """
        if generation_config.decoding == "autoregressive":
            output = super()._sample(
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus,
                streamer,
                **model_kwargs,
            )
            return autoregressive_output(output, input_ids.shape[1], generation_config)
        mask_token_id = self.config.require_mask_token_id()
        max_new_tokens = max(1, stopping_criteria.max_length - input_ids.shape[1])
        runs_on = input_ids.device if self.device.type == "meta" else self.device
        window_size = min(generation_config.window_size or what_suits(runs_on), max_new_tokens)
        policy = Policy.of(generation_config, logits_processor, window_size, mask_token_id, input_ids.device)

        past = model_kwargs.get("past_key_values")
        prompt = self._prompt_of(input_ids, max_new_tokens, generation_config, model_kwargs)
        kind = VerifiedWindow if policy.decoding == "verified" else Window
        batch = window = kind.opened(prompt.is_text.sum(-1), max_new_tokens, policy.window_size, mask_token_id)
        readers = None
        if TextReaders.are_needed(logits_processor, stopping_criteria, streamer, generation_config):
            readers = TextReaders(
                input_ids,
                max_new_tokens,
                mask_token_id,
                logits_processor,
                stopping_criteria,
                streamer,
                generation_config,
            )
        most = prompt.room + max_new_tokens + 2 * policy.window_size
        returns_cache = generation_config.return_dict_in_generate or getattr(past, "_is_user_defined", False)
        static = cache = None
        if past is not None and generation_config.cache_implementation == "static" and not (readers or synced_gpus):
            most = max(most, (getattr(generation_config, "max_cache_len", None) or 0) + 2 * policy.window_size)
            static = StaticSteps.of(self, policy, window, most)
            cache = static.cache
        elif past is not None:
            cache = RowCache.of_columns(past, prompt.cached_is_text, most, returns_cache)
        text, longest = self._read_ahead(prompt, window, cache, generation_config.prefill_chunk_size, synced_gpus)
        rows = window.reorder(policy.window_size, policy.window_size, mask_token_id).behind(text)
        # A hook may count on the rows of the batch, as that of PEFT's adapter_names does.
        num_alive = len(input_ids)
        rows_may_leave = num_alive > 1 and not any(m._forward_pre_hooks or m._forward_hooks for m in self.modules())
        while self._has_unfinished_sequences(num_alive == 0, synced_gpus, device=input_ids.device):
            live = longest + rows.input_ids.shape[1]
            if num_alive == 0:
                forward_rows(self, rows, cache, live)  # with synced_gpus, so that other ranks can go on
                continue
            status = take_step(self, policy, window, rows, cache, live, readers)
            if static is not None:
                static.take_all(self, policy, window, status, self._static_step(generation_config, cache))
                break
            status = read_status(status.tolist(), window)
            num_alive, longest = sum(status.alive), max(status.committed)
            if rows_may_leave and 0 < 2 * num_alive <= len(window.alive):  # which pays for the copy of what stays
                batch.put(window)
                kept = window.alive.int().argsort(descending=True, stable=True)[:num_alive]
                window = window.select(kept)
                if cache is not None:
                    cache.select(kept)
            rows = window.reorder(max(1, *status.num_rows), policy.window_size, mask_token_id)
            if cache is None:
                rows = rows.behind(window.committed_text(prompt.text.tokens, longest))
        batch.put(window)
        if cache is not None and returns_cache:
            past.layers = cached_columns(cache, prompt, batch).layers
        if static is not None:
            left[self] = static
        if streamer is not None:
            streamer.end()
        return output_of(batch, input_ids, generation_config, past, readers)

    def _static_step(self, generation_config: GenerationConfig, cache: RowCache) -> Callable:
        """Compiled where transformers would, and wherever compile_config asks for it."""
        config = copy(generation_config.compile_config)
        if config is not None:
            config._compile_all_devices = True
        asked = GenerationConfig(compile_config=config, disable_compile=generation_config.disable_compile)
        if not self._valid_auto_compile_criteria({"past_key_values": cache}, asked):
            return static_step
        return torch.compile(static_step, **(config or CompileConfig()).to_dict())

    def _prompt_of(
        self, input_ids: torch.Tensor, max_new_tokens: int, generation_config: GenerationConfig, model_kwargs: dict
    ) -> Prompt:
        past = model_kwargs.get("past_key_values")
        attention_mask = model_kwargs.get("attention_mask")
        if attention_mask is None:  # transformers drops one that is all ones, and keeps its length
            mask_length = getattr(generation_config, "_mask_length", input_ids.shape[1])
            attention_mask = input_ids.new_ones(len(input_ids), mask_length)
        return read_prompt(
            input_ids,
            attention_mask,
            model_kwargs["position_ids"],
            0 if past is None else past.get_seq_length(),
            self.config.mask_token_id,
            max_new_tokens,
            self.config.max_position_embeddings,
        )

    def _read_ahead(
        self, prompt: Prompt, window: Window, cache: RowCache | None, chunk_size: int | None, synced_gpus: bool
    ) -> tuple[Text, int]:
        """Takes all chunks of the prompt but the last into the cache; returns that one, and the longest row cached."""
        *chunks, last = prompt.chunks(chunk_size)
        for chunk in chunks:
            self._has_unfinished_sequences(False, synced_gpus, device=window.start.device)  # other ranks take part
            forward_rows(self, WindowQueries.of_text(chunk), cache, int(chunk.positions.max()) + chunk.tokens.shape[1])
            cache.commit(chunk.lengths)
            window.forwards = window.forwards + 1
        return last, int(last.positions.max())


def shorten(cache: DynamicCache, lengths: list[int]) -> None:
    """Undoes what a call has put into a cache, which may be in some layers only."""
    del cache.layers[len(lengths) :]
    for layer, length in zip(cache.layers, lengths, strict=True):
        if (more := layer.get_seq_length() - length) > 0:
            layer.crop(-more)


def cached_columns(cache: RowCache, prompt: Prompt, window: Window) -> DynamicCache:
    """An ordinary cache over as many columns of the text as every row has in the cache."""
    num_cached = int(torch.minimum(window.start, window.num_tokens).min())
    is_new_text = prompt.is_text.new_ones(len(prompt.is_text), num_cached)
    return cache.to_columns(torch.cat([prompt.is_text, is_new_text], dim=-1))


def output_of(
    window: Window,
    input_ids: torch.Tensor,
    generation_config: GenerationConfig,
    past_key_values: DynamicCache | None,
    readers: TextReaders | None,
) -> WeDLMGenerateOutput | torch.LongTensor:
    """The prompts as they were given and behind each its text, padded on the right; with statistics if asked for."""
    columns = torch.arange(int(window.num_tokens.max()), device=input_ids.device)
    tokens = window.tokens[:, : len(columns)]
    if generation_config._pad_token_tensor is not None:
        tokens = torch.where(columns < window.num_tokens[:, None], tokens, generation_config._pad_token_tensor)
    sequences = torch.cat([input_ids, tokens], dim=-1)
    if not generation_config.return_dict_in_generate:
        return sequences
    return WeDLMGenerateOutput(
        sequences=sequences,
        **({} if readers is None else readers.recorded(window.num_tokens)),
        past_key_values=past_key_values,
        **window.counted(),
    )


def autoregressive_output(
    output: GenerateDecoderOnlyOutput | torch.LongTensor, prompt_length: int, generation_config: GenerationConfig
) -> WeDLMGenerateOutput | torch.LongTensor:
    """The same statistics for transformers' own decoding: a forward for each token, nothing processed twice."""
    if not generation_config.return_dict_in_generate:
        return output
    tokens = output.sequences[:, prompt_length:]
    num_tokens = torch.full_like(tokens[:, 0], tokens.shape[1])
    if generation_config._pad_token_tensor is not None:
        is_padding = tokens.eq(generation_config._pad_token_tensor).flip(-1).cumprod(-1)  # the run at the end
        num_tokens = num_tokens - is_padding.sum(-1)
    if generation_config._eos_token_tensor is not None:
        is_end = torch.isin(tokens, generation_config._eos_token_tensor)  # it may be the padding as well
        num_tokens = torch.where(is_end.any(-1), is_end.int().argmax(-1) + 1, num_tokens)
    return WeDLMGenerateOutput(**output, **statistics(num_tokens, num_tokens, num_tokens))

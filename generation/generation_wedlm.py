import math
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.generation import (
    EosTokenCriteria,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    GenerateDecoderOnlyOutput,
    GenerationMode,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MaxLengthCriteria,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from wedlm.generation.position_selection import entropy_of, select_slots
from wedlm.generation.prompt import check_lengths, left_aligned_prompt
from wedlm.generation.row_cache import RowCache
from wedlm.generation.stats import WeDLMGenerateOutput, statistics
from wedlm.generation.token_sampling import choose_tokens
from wedlm.generation.window import Window, WindowRows

DECODINGS = ("streaming", "blockwise", "autoregressive")
DEFAULTS = {"decoding": "streaming", "window_size": 16, "entropy_threshold": 0.4, "distance_penalty": 0.02}
# Processors that read no text, so that one call judges all slots.
PLAIN_PROCESSORS = {
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
}
# What generate() takes and parallel decoding does not do, each with the values that ask for nothing.
NOT_OFFERED = {
    "bad_words_ids": (None,),
    "begin_suppress_tokens": (None,),
    "cache_implementation": (None, "dynamic"),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1.0),
    "max_time": (None,),
    "min_new_tokens": (None, 0),  # before min_length, which transformers derives from it
    "min_length": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "output_logits": (None, False),
    "output_scores": (None, False),
    "prefill_chunk_size": (None,),
    "repetition_penalty": (None, 1.0),
    "sequence_bias": (None,),
    "stop_strings": (None,),
    "token_healing": (None, False),
    "use_cache": (None, True),
    "watermarking_config": (None,),
}


class WeDLMGenerationMixin(GenerationMixin):
    """`generate()` of a WeDLM model: several tokens per forward, unless decoding="autoregressive" asks for one.

    Four parameters live on `generation_config` and can be passed to `generate()`:

    - `decoding`: "streaming" (default) fills slots of a window and commits each as soon as none before it is open;
      "blockwise" commits a window when it is full; "autoregressive" is transformers' own. None produces MASK.
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
            for name in ("past_key_values", "inputs_embeds"):
                if model_kwargs.get(name) is not None:
                    refuse(name, type(model_kwargs[name]).__name__, generation_config)
        return generation_config, model_kwargs

    def _validate_generation_mode(self, generation_mode, generation_config, generation_mode_kwargs):
        if generation_config.decoding != "autoregressive":
            if generation_config.num_beams > 1:
                refuse("num_beams", generation_config.num_beams, generation_config)
            if generation_config.prompt_lookup_num_tokens is not None:
                refuse("prompt_lookup_num_tokens", generation_config.prompt_lookup_num_tokens, generation_config)
            for name in ("assistant_model", "streamer"):
                if name in generation_mode_kwargs:
                    refuse(name, type(generation_mode_kwargs[name]).__name__, generation_config)
            if generation_mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
                refuse("generation mode", generation_mode.value, generation_config)
        super()._validate_generation_mode(generation_mode, generation_config, generation_mode_kwargs)

    def _get_logits_processor(self, *args, device=None, **kwargs) -> LogitsProcessorList:
        processors = super()._get_logits_processor(*args, device=device, **kwargs)
        if self.config.mask_token_id is not None:
            # First, so that no later processor sees a score for MASK. (An offloaded model's own device is meta.)
            mask_token_ids = [self.config.mask_token_id]
            processors.insert(0, SuppressTokensLogitsProcessor(mask_token_ids, device=device or self.device))
        return processors

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
        streamer=None,
        **model_kwargs,
    ) -> WeDLMGenerateOutput | torch.LongTensor:
        """Streaming or blockwise decoding of a batch, every row at its own pace.

        1. Forward: the filled slots of the window, then a MASK per open slot; the first has the prompt in front.
        2. Commit: what stands before the first open slot is final, and stays in the cache.
        3. Fill: a token for every open slot that is selected.
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
        check_support(self.config, logits_processor, stopping_criteria, generation_config, synced_gpus)
        if (owner := self.prepare_inputs_for_generation.__self__) is not self:
            # How PEFT's prompt, prefix and p-tuning bring in what they learned; there is no such step here.
            refuse("prepare_inputs_for_generation", type(owner).__name__, generation_config)
        if self.training and self.is_gradient_checkpointing:
            raise ValueError(
                f"The model is in training with gradient checkpointing, which drops the cache that decoding="
                f"{generation_config.decoding!r} needs; call model.eval() first."
            )
        mask_token_id = self.config.require_mask_token_id()
        max_new_tokens = generation_config.max_length - input_ids.shape[1]
        window_size = min(generation_config.window_size, max_new_tokens)
        blockwise = generation_config.decoding == "blockwise"
        prompt, lengths = left_aligned_prompt(input_ids, model_kwargs.get("attention_mask"), mask_token_id)
        check_lengths(int(lengths.max()), max_new_tokens, self.config.max_position_embeddings)
        end_tokens = generation_config._eos_token_tensor
        end_tokens = lengths.new_empty(0) if end_tokens is None else end_tokens

        batch = window = Window.opened(lengths, max_new_tokens, window_size, mask_token_id)
        batch_rows = torch.arange(len(prompt), device=prompt.device)  # the rows of `batch` that `window` holds
        cache = RowCache(len(prompt), most=prompt.shape[1] + max_new_tokens + 2 * window_size, device=prompt.device)
        longest = 0  # the greatest of cache.lengths
        rows = WindowRows.of_prompt(prompt, lengths, window_size, mask_token_id)
        while True:
            # 1. Forward
            attention_mask = cache.begin_forward(rows.input_ids.shape[1], longest)
            logits = self(
                input_ids=rows.input_ids,
                position_ids=rows.position_ids,
                attention_mask=attention_mask,
                past_key_values=cache,
                use_cache=True,
                rows_to_keep=rows.open_rows,
                return_dict=True,
            ).logits  # [batch, slots, vocabulary]
            window.count_forward()

            # 2. Commit
            cache.commit(rows.num_final)
            window.commit()

            # 3. Fill
            selected = select_slots(
                entropy_of(logits),
                rows.open_slots,
                rows.is_open,
                generation_config.entropy_threshold,
                generation_config.distance_penalty,
            )
            tokens, is_possible = choose_tokens(logits, logits_processor, generation_config.do_sample)
            window.fill(rows.open_slots, selected, tokens)
            impossible = selected & ~is_possible

            # 4. Advance
            window.advance(window_size, end_tokens, blockwise)
            num_alive, width, longest, num_impossible = window.sizes(impossible)
            if num_impossible > 0:
                refuse_impossible(impossible, rows.open_slots, window.prompt_lengths, batch_rows)
            if num_alive == 0:
                break
            if 2 * num_alive <= len(batch_rows):  # the smaller batch pays for the copy of what stays
                batch.put(batch_rows, window)
                kept = window.alive.int().argsort(descending=True, stable=True)[:num_alive]
                batch_rows, window = batch_rows[kept], window.select(kept)
                cache.select(kept)
            rows = window.reorder(width, window_size, mask_token_id)
        batch.put(batch_rows, window)
        return output_of(batch, input_ids, generation_config)


def output_of(
    window: Window, input_ids: torch.Tensor, generation_config: GenerationConfig
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
        sequences=sequences, **statistics(window.num_tokens, window.forwards, window.window_rows)
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


# --- Refusals: one sentence that names the argument, the value and the remedy ---


def refuse(name: str, value: object, generation_config: GenerationConfig) -> None:
    raise ValueError(
        f"{name}={value!r} is not offered by decoding={generation_config.decoding!r}; leave it out (or reset it in "
        'model.generation_config), or pass decoding="autoregressive".'
    )


def refuse_impossible(
    impossible: torch.Tensor, slots: torch.Tensor, prompt_lengths: torch.Tensor, batch_rows: torch.Tensor
) -> None:
    row, slot = (index[0] for index in impossible.nonzero(as_tuple=True))
    raise ValueError(
        f"No token has a finite score in row {batch_rows[row].item()} at position "
        f"{(prompt_lengths[row] + slots[row, slot]).item()}: the logits are not finite, or suppress_tokens and the "
        "other logits processors leave nothing to choose; loosen them."
    )


def says_what_the_config_says(criterion, generation_config: GenerationConfig) -> bool:
    """Whether a criterion is the one for max_length or eos_token_id; the caller may pass others of these types."""
    if type(criterion) is MaxLengthCriteria:
        return criterion.max_length == generation_config.max_length
    if type(criterion) is EosTokenCriteria and generation_config._eos_token_tensor is not None:
        return set(criterion.eos_token_id.tolist()) == set(generation_config._eos_token_tensor.tolist())
    return False


def is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def check_parameters(config: GenerationConfig) -> None:
    if config.decoding not in DECODINGS:
        raise ValueError(f"decoding={config.decoding!r} is unknown; choose one of {', '.join(map(repr, DECODINGS))}.")
    if not isinstance(config.window_size, int) or isinstance(config.window_size, bool) or config.window_size < 1:
        raise ValueError(
            f"window_size={config.window_size!r} is not a number of slots; set it to an integer of 1 or more."
        )
    if config.entropy_threshold is not None and not is_amount(config.entropy_threshold):
        raise ValueError(
            f"entropy_threshold={config.entropy_threshold!r} is not an entropy; set it to a finite number of nats, 0 "
            "or more, or to None to fill one slot per forward."
        )
    if not is_amount(config.distance_penalty):
        raise ValueError(
            f"distance_penalty={config.distance_penalty!r} is not a penalty; set it to a finite number, 0 or more."
        )


def check_support(config, processors, criteria, generation_config: GenerationConfig, synced_gpus: bool) -> None:
    """Names what parallel decoding does not do yet, before anything has begun."""
    if config.rope_parameters["rope_type"] in ("dynamic", "longrope"):
        # They stretch positions by the longest row of the batch, so that rows would influence each other.
        refuse("rope_type", config.rope_parameters["rope_type"], generation_config)
    if "sliding_attention" in config.layer_types:
        refuse("layer_types", config.layer_types, generation_config)
    if config._attn_implementation not in ("eager", "sdpa"):
        raise ValueError(
            f"attn_implementation={config._attn_implementation!r} is not offered by decoding="
            f'{generation_config.decoding!r}; call model.set_attn_implementation("sdpa"), or pass '
            'decoding="autoregressive".'
        )
    for name, harmless in NOT_OFFERED.items():
        if (value := getattr(generation_config, name)) not in harmless:
            refuse(name, value, generation_config)
    for processor in processors:
        if type(processor) not in PLAIN_PROCESSORS:
            refuse("logits_processor", type(processor).__name__, generation_config)
    for criterion in criteria:
        if not says_what_the_config_says(criterion, generation_config):
            refuse("stopping_criteria", type(criterion).__name__, generation_config)
    if synced_gpus:
        refuse("synced_gpus", synced_gpus, generation_config)

"""generate() of a WeDLM model: parallel decoding behind transformers' own interface."""

from functools import wraps
from inspect import isfunction, signature
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ContinuousBatchingConfig,
    ContinuousBatchingManager,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer, GenerationMode, SuppressTokensLogitsProcessor
from transformers.generation.continuous_batching.requests import GenerationOutput

from wedlm.generation.call import undone_on_error
from wedlm.generation.decoding import WeDLMGenerateOutput, autoregressive_output, decode
from wedlm.generation.package import from_package
from wedlm.generation.parameters import DEFAULTS, check_parameters, decoding_of, defaults_of
from wedlm.generation.sampling import NoTokenError, reads_no_text
from wedlm.generation.static_steps import free_static_memory
from wedlm.generation.transformers_internals import CACHE, check_is_filled, deprecates_old_name, keep_on_save
from wedlm.generation.validation import (
    check_decoding,
    check_in_vocabulary,
    check_inputs,
    check_support,
    named_weights,
    refuse,
    take_look_up,
    warn_of_call,
)


class WeDLMGenerationMixin(GenerationMixin):
    """`generate()` of a WeDLM model: several tokens per forward, unless decoding="autoregressive" asks for one.

    These parameters stand on `model.generation_config` and can be passed to `generate()`:

    Args:
        decoding (`str`, *optional*, defaults to `"streaming"`): "streaming" fills slots of a window, and commits each
            as soon as no slot before it is open. "blockwise" commits a window when all of it is filled. "verified"
            writes the autoregressive text: each forward verifies the drafts of the one before. "autoregressive" is
            transformers' own loop. No decoding writes MASK. With `mask_shift` in the config the default is "verified".
        window_size (`int`, *optional*): Slots behind the committed text, at least 1; by default 16, on a CPU 8. A
            forward has at most twice as many queries.
        query_cost (`float`, *optional*): In verified decoding, the cost of one more query as a share of a forward with
            one; by default 0, on a CPU 0.1. A query is taken only if it promises more tokens than it costs.
        entropy_threshold (`float`, *optional*, defaults to 0.4): Slots whose entropy in nats is lower are filled. None
            fills one slot per forward.
        distance_penalty (`float`, *optional*, defaults to 0.02): Added to a slot's entropy for each slot of its
            distance from the first open one.
        acceptance_ratio (`float`, *optional*, defaults to 1.0): In greedy verified decoding, a draft is accepted if
            its probability is at least this share of the best token's. 1.0 writes the autoregressive text.
    """

    @property
    def generation_config(self) -> GenerationConfig:
        return self._generation_config

    @generation_config.setter
    def generation_config(self, generation_config: GenerationConfig) -> None:
        """Parameters that the config lacks get their defaults."""
        for name, default in defaults_of(self.config).items():
            if not hasattr(generation_config, name):
                setattr(generation_config, name, default)
        keep_on_save(generation_config)
        self._generation_config = generation_config

    def free_static_memory(self) -> None:
        """Frees what calls with cache_implementation="static" keep for the next."""
        free_static_memory(self)

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, **kwargs: Any
    ) -> tuple[GenerationConfig, dict]:
        # A keyword comes before generation_config, and that before the model's own. They are set last, since None
        # means "not given" to transformers, and entropy_threshold=None is a value.
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
        check_decoding(self, generation_config.decoding)
        take_look_up(generation_config)
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

    def _get_logits_processor(self, generation_config, *args, device=None, **kwargs) -> LogitsProcessorList:
        processors = super()._get_logits_processor(generation_config, *args, device=device, **kwargs)
        if self.config.mask_token_id is not None:
            # (An offloaded model's own device is meta.)
            ban = SuppressTokensLogitsProcessor([self.config.mask_token_id], device=device or self.device)
            if not all(map(reads_no_text, processors)):
                processors.append(ban)  # a processor may have set scores of its own
            processors.insert(0, ban)  # so that none sees a score for MASK
        return processors

    @deprecates_old_name
    @wraps(GenerationMixin.generate)
    def generate(self, *args, **kwargs):
        """Generates tokens as transformers' `generate()` does, and takes `decoding` and its parameters.

        docs/reference/generate.md says what each argument does in each decoding.
        """
        streamer = signature(GenerationMixin.generate).bind(self, *args, **kwargs).arguments.get("streamer")
        with undone_on_error(kwargs.get(CACHE), streamer):
            for inputs in (*args[:1], kwargs.get("inputs"), kwargs.get("input_ids")):
                if inputs is not None:
                    check_inputs(inputs)
            given = kwargs.get("generation_config", args[1] if len(args) > 1 else None)
            strategy = kwargs.get("custom_generate")
            if not isfunction(strategy):  # which would replace the decoding
                settings = kwargs if strategy is None else {"decoding": "verified", **kwargs}
                warn_of_call(self, decoding_of(given, settings, self), given, kwargs)
            return super().generate(*args, **kwargs)

    def _prepare_cache_for_generation(self, generation_config: GenerationConfig, model_kwargs: dict, *args):
        """Makes no StaticCache for parallel decoding, whose static steps have a cache of their own."""
        asked = generation_config.cache_implementation  # which `Call` reads later
        if generation_config.decoding != "autoregressive" and model_kwargs.get(CACHE) is None:
            generation_config.cache_implementation = None
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        generation_config.cache_implementation = asked

    def _prefill(self, input_ids, generation_config, model_kwargs, *args, **kwargs):
        given = model_kwargs.get(CACHE)
        length = 0 if given is None else int(given.get_seq_length())
        output = super()._prefill(input_ids, generation_config, model_kwargs, *args, **kwargs)
        if (cache := getattr(output, CACHE)) is not None:
            check_is_filled(int(cache.get_seq_length()) > length)
        # (Here alone, since a look at each token would let the host wait for the device.)
        is_nan = output.logits[:, -1].isnan().any(-1)
        if not generation_config.remove_invalid_values and is_nan.any():
            raise NoTokenError(
                f"The scores of row {is_nan.nonzero()[0].item()} at its first new token are not a number; look for "
                "NaN in the weights, or load them in another dtype."
            )
        return output

    def generate_batch(
        self,
        inputs: list[list[int]],
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        record_timestamps: bool = False,
        progress_bar: bool = False,
        persistent_manager: bool = False,
        warmup: bool = True,
        **settings: Any,
    ) -> dict[str, GenerationOutput]:
        """Generates from all prompts in one running batch, and returns the outputs by the ids of the requests.

        It takes the arguments of transformers' `generate_batch()`, and any that `generate()` takes. Each output is the
        one that `generate()` writes for its prompt alone. `persistent_manager` and `warmup` have no effect, because a
        manager is ready at once.
        """
        manager = batching_manager(self, generation_config, continuous_batching_config)
        return manager.generate_all(inputs, record_timestamps, progress_bar, settings)

    def init_continuous_batching(
        self,
        generation_config: GenerationConfig | None = None,
        continuous_batching_config: ContinuousBatchingConfig | None = None,
        workload_hints: object = None,
    ) -> ContinuousBatchingManager:
        """A manager of continuous batching, a `BatchingManager`, for which `workload_hints` have no effect."""
        return batching_manager(self, generation_config, continuous_batching_config)

    def _sample(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        **model_kwargs,
    ) -> WeDLMGenerateOutput | Tensor:
        """Decodes a batch, every sequence at its own pace; `after_forward` says what a step does."""
        arguments = (input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer)
        if generation_config.decoding == "autoregressive":
            check_in_vocabulary(input_ids, self.config.vocab_size)
            with named_weights(self):
                output = super()._sample(*arguments, **model_kwargs)
            return autoregressive_output(output, input_ids.shape[1], generation_config)
        return decode(self, *arguments, **model_kwargs)


def batching_manager(model: GenerationMixin, *settings: Any) -> ContinuousBatchingManager:
    return from_package("wedlm.batching.manager", "Continuous batching").BatchingManager(model, *settings)

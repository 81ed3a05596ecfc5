"""Verified decoding for every causal language model of transformers, by `generate(custom_generate=...)`."""

from collections.abc import Callable
from copy import copy
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import BaseStreamer, GenerationMode

from wedlm.generation.call import undone_on_error
from wedlm.generation.decoding import WeDLMGenerateOutput, autoregressive_output, decode
from wedlm.generation.model_check import check_fits
from wedlm.generation.model_kind import is_stock
from wedlm.generation.parameters import DEFAULTS, READS, check_parameters
from wedlm.generation.transformers_internals import CACHE, own_loop, resolved_generation_config, waits_for_other_ranks
from wedlm.generation.validation import check_decoding, check_support, refuse, take_look_up

MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
LOOK_UP = ("prompt_lookup_num_tokens", "max_matching_ngram_size")
PARAMETERS = ("decoding", *READS["verified"], *LOOK_UP)


class Verified:
    """Verified decoding for any causal language model: `model.generate(**inputs, custom_generate=wedlm.verified)`.

    The output is the same as without it, up to rounding. Prompt lookup finds drafts in the text, and each forward pass
    verifies several of them. Pass the parameters to `generate()`, set them on a generation config, or bind them:
    `wedlm.verified(window_size=8)`.

    Args:
        window_size (`int`, *optional*): A forward pass verifies at most `window_size - 1` drafts; by default 16, on a
            CPU 8.
        query_cost (`float`, *optional*): The cost of one more input token, as a share of a forward pass with one; by
            default 0, on a CPU 0.1. A draft is verified only if it promises more tokens than it costs.
        acceptance_ratio (`float`, *optional*, defaults to 1.0): Below 1, a draft is accepted if its probability is at
            least this share of the best token's, and the output may change.
        prompt_lookup_num_tokens (`int`, *optional*): The most drafts of prompt lookup; by default `window_size - 1`.
        max_matching_ngram_size (`int`, *optional*, defaults to 6): The most last tokens that prompt lookup compares,
            at most 6.
    """

    def __init__(
        self,
        streamer: BaseStreamer | None = None,  # of the one call that `answer` makes the object for, as synced_gpus
        synced_gpus: bool | None = None,
        loop: Callable | None = None,  # what gets the resolved call, in place of the loop of decoding
        **settings: Any,
    ):
        self.streamer, self.synced_gpus, self.loop, self.settings = streamer, synced_gpus, loop, settings

    def __call__(self, *args: Any, **arguments: Any) -> "Verified | WeDLMGenerateOutput | Tensor":
        """Decodes, as generate() calls it; with parameters alone, returns the strategy with these parameters."""
        if args or "model" in arguments:
            return self.decode(*args, **arguments)
        if unknown := arguments.keys() - set(PARAMETERS):
            raise TypeError(
                f"verified() has no parameter {min(unknown)!r}; it has {', '.join(PARAMETERS[1:])}, and generate() "
                "takes all others."
            )
        return Verified(**{**self.settings, **arguments})

    def decode(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> WeDLMGenerateOutput | Tensor:
        streamer, synced_gpus = self.streamer, self.synced_gpus
        synced_gpus = waits_for_other_ranks(model) if synced_gpus is None else synced_gpus
        config = resolved(model, generation_config, self.settings)
        call = (input_ids, logits_processor, stopping_criteria, config)
        if config.decoding == "autoregressive":
            output = own_loop(model)(*call, synced_gpus=synced_gpus, streamer=streamer, **model_kwargs)
            # (An encoder-decoder's output has other fields.)
            is_decoder = not model.config.is_encoder_decoder
            return autoregressive_output(output, input_ids.shape[1], config) if is_decoder else output
        check_support(model, config, model_kwargs)
        check_fits(model, len(input_ids))
        return (self.loop or decode)(model, *call, synced_gpus, streamer, **model_kwargs)


def resolved(
    model: PreTrainedModel, generation_config: GenerationConfig, settings: dict[str, Any]
) -> GenerationConfig:
    """The generation config of a call, with the parameters of verified decoding on it."""
    config = copy(generation_config)
    for name, default in {**DEFAULTS, "decoding": "verified"}.items():
        if not hasattr(config, name):
            setattr(config, name, default)
    for name, value in settings.items():
        setattr(config, name, value)
    check_parameters(config)
    check_decoding(model, config.decoding)
    take_look_up(config)
    if (mode := config.get_generation_mode()) not in MODES:
        refuse("generation mode", mode.value, config)
    return config


def resolved_config(model: PreTrainedModel, **arguments: Any) -> GenerationConfig:
    """The generation config that `model.generate(**arguments)` decodes with; refuses what generate() refuses."""
    if not is_stock(model):
        return resolved_generation_config(model, **arguments)
    ours = {name: arguments.pop(name) for name in PARAMETERS if name in arguments}
    return resolved(model, resolved_generation_config(model, **arguments), ours)


# --- From the arguments of generate() ---


def answer(model: PreTrainedModel, own: Callable, args: tuple, kwargs: dict[str, Any]):
    """Answers `model.generate(*args, **kwargs)` by this strategy, for the wrapper around `GenerationMixin.generate`.

    `own` is transformers' generate(), which resolves the call and comes back to `Verified.decode`. It hands neither
    the streamer nor synced_gpus to a function, so the strategy carries them; stop strings become a criterion.
    """
    arguments = signature(own).bind(model, *args, **kwargs).arguments
    arguments |= arguments.pop("kwargs", {})
    del arguments["self"]
    strategy = arguments.pop("custom_generate", None)
    strategy = strategy if isinstance(strategy, Verified) else verified
    given = strategy.settings | {name: arguments.pop(name) for name in PARAMETERS if name in arguments}
    with_stop_strings(model, arguments)
    if not is_stock(model):  # It decodes in its own `_sample`; only a running batch has a loop in its place.
        return own(model, **{"decoding": "verified", **given, **arguments}, custom_generate=strategy.loop)
    with undone_on_error(arguments.get(CACHE, arguments.get("past_key_values")), arguments.get("streamer")):
        look_up = {name: given[name] for name in LOOK_UP if name in given}
        config = resolved_generation_config(model, **look_up, **arguments)
        decoding = given.pop("decoding", None) or getattr(config, "decoding", "verified")
        mode = mode_of(config, arguments.get("assistant_model"))
        if decoding == "autoregressive" and (config.token_healing or mode not in MODES):
            return own(model, **look_up, **arguments)
        if config.token_healing:
            refuse("token_healing", config.token_healing, resolved(model, config, {}))
        if (assistant := arguments.get("assistant_model")) is not None:
            raise ValueError(
                f"assistant_model={type(assistant).__name__} is not offered by verified decoding, whose drafts come "
                "from the text; leave out one of the two."
            )
        if config.cache_implementation == "static" and decoding == "verified" and not has_cache(arguments):
            # (transformers would make a StaticCache, and static steps have a cache of their own.)
            given["cache_implementation"], arguments["cache_implementation"] = "static", "dynamic"
        if config.prompt_lookup_num_tokens is not None:  # by which transformers would decode with an assistant
            given["prompt_lookup_num_tokens"] = config.prompt_lookup_num_tokens
            arguments["prompt_lookup_num_tokens"] = None
        bound = arguments.get("streamer"), arguments.get("synced_gpus"), strategy.loop
        return own(model, **arguments, custom_generate=Verified(*bound, decoding=decoding, **given))


def has_cache(arguments: dict[str, Any]) -> bool:
    return any(arguments.get(name) is not None for name in (CACHE, "past_key_values"))


def mode_of(generation_config: GenerationConfig, assistant: PreTrainedModel | None) -> GenerationMode:
    """The mode of transformers; a look-up of no tokens is none."""
    config = copy(generation_config)
    config.prompt_lookup_num_tokens = config.prompt_lookup_num_tokens or None
    return config.get_generation_mode(assistant)


def with_stop_strings(model: PreTrainedModel, arguments: dict[str, Any]) -> None:
    """Makes a criterion of the tokenizer and stop strings of a call; transformers hands neither to a function."""
    configs = [arguments.get("generation_config"), model.generation_config]
    given = [arguments.get("stop_strings"), *(getattr(config, "stop_strings", None) for config in configs)]
    stop_strings = next((value for value in given if value is not None), None)
    if stop_strings is not None and arguments.get("tokenizer") is not None:
        criterion = StopStringCriteria(tokenizer=arguments["tokenizer"], stop_strings=stop_strings)
        arguments["stopping_criteria"] = StoppingCriteriaList([*(arguments.get("stopping_criteria") or ()), criterion])
        arguments["stop_strings"] = None


def generate(model: PreTrainedModel, **arguments: Any):
    """`model.generate(**arguments)` as `custom_generate="REPOSITORY"` calls it, the repository being an export."""
    return answer(model, type(model).generate, (), arguments)


verified = Verified()

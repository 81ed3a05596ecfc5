"""Verified decoding for every causal language model of transformers, by `generate(custom_generate=...)`."""

from collections.abc import Callable
from copy import copy
from inspect import signature
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import BaseStreamer, GenerationMode

from wedlm.generation.call import Call, undone_on_error
from wedlm.generation.decoding import Decoding, WeDLMGenerateOutput, autoregressive_output, forward_queries
from wedlm.generation.parameters import DEFAULTS, READS, check_parameters
from wedlm.generation.row_cache import RowCache
from wedlm.generation.stock import FITS, is_stock, text_config_of
from wedlm.generation.transformers_internals import CACHE, attention_of, own_loop, resolved_generation_config
from wedlm.generation.validation import check_look_up, check_support, named_weights, refuse
from wedlm.generation.window import Text, WindowQueries

PARAMETERS = ("decoding", *READS["verified"], "prompt_lookup_num_tokens", "max_matching_ngram_size")


class Verified:
    """Verified decoding, for `model.generate(custom_generate=wedlm.verified)` of any causal language model.

    The text is the one that `generate()` writes without it. Drafts are looked up in the text; each forward verifies
    several of them. `wedlm.verified(window_size=8)` binds parameters, each of which may also be passed to
    `generate()`, or stand on a generation config.

    Args:
        window_size (`int`, *optional*): Drafts and the token before them, in a forward; by default 16, on a CPU 8.
        query_cost (`float`, *optional*): The cost of one more query as a share of a forward with one; by default 0, on
            a CPU 0.04. A draft is verified only if it promises more tokens than it costs.
        acceptance_ratio (`float`, *optional*, defaults to 1.0): Below 1, a draft is accepted if its probability is at
            least this share of the best token's. 1.0 writes the text of `generate()`.
        prompt_lookup_num_tokens (`int`, *optional*): The most drafts; by default window_size - 1.
        max_matching_ngram_size (`int`, *optional*, defaults to 6): The most last tokens that are looked up.
    """

    def __init__(self, **settings: Any):
        self.settings = settings

    def bind(self, **settings: Any) -> "Verified":
        return type(self)(**{**self.settings, **{k: v for k, v in settings.items() if v is not None}})

    def __call__(
        self,
        model: PreTrainedModel | None = None,
        input_ids: torch.LongTensor | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        generation_config: GenerationConfig | None = None,
        synced_gpus: bool | None = None,
        streamer: BaseStreamer | None = None,
        # Those that no GenerationConfig of transformers has, or that would choose another decoding: generate() hands
        # over what this signature names.
        decoding: str | None = None,
        window_size: int | None = None,
        query_cost: float | None = None,
        acceptance_ratio: float | None = None,
        prompt_lookup_num_tokens: int | None = None,
        **model_kwargs: Any,
    ) -> "Verified | WeDLMGenerateOutput | torch.LongTensor":
        """Decodes, as generate() calls it; with parameters alone, returns the strategy with these parameters."""
        given = {
            "decoding": decoding,
            "window_size": window_size,
            "query_cost": query_cost,
            "acceptance_ratio": acceptance_ratio,
            "prompt_lookup_num_tokens": prompt_lookup_num_tokens,
        }
        bound = self.bind(streamer=streamer, synced_gpus=synced_gpus, **given)
        if model is None:
            unknown = model_kwargs.keys() - {"max_matching_ngram_size"}
            if unknown:
                raise TypeError(
                    f"verified() has no parameter {min(unknown)!r}; it has {', '.join(PARAMETERS[1:])}, and "
                    "generate() takes all others."
                )
            return bound.bind(**model_kwargs)
        return bound.decode(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)

    def decode(self, model, input_ids, processors, criteria, generation_config, **model_kwargs):
        settings = dict(self.settings)
        streamer, synced_gpus = settings.pop("streamer", None), settings.pop("synced_gpus", False)
        with undone_on_error(model_kwargs.get(CACHE), streamer):
            config = resolved(generation_config, settings)
            if config.decoding == "autoregressive":
                call = (input_ids, processors, criteria, config)
                output = own_loop(model)(*call, synced_gpus=synced_gpus, streamer=streamer, **model_kwargs)
                return autoregressive_output(output, input_ids.shape[1], config)
            check_support(model, config, model_kwargs)
            check_fits(model)
            with named_weights(model):
                return self.run(
                    Call(model, input_ids, processors, criteria, config, synced_gpus, streamer, model_kwargs)
                )

    def run(self, call: Call) -> WeDLMGenerateOutput | torch.Tensor:
        return Decoding(call).run()


def resolved(generation_config: GenerationConfig, settings: dict[str, Any]) -> GenerationConfig:
    """The generation config of a call, with the parameters of verified decoding on it."""
    config = copy(generation_config)
    for name, default in {**DEFAULTS, "decoding": "verified"}.items():
        if not hasattr(config, name):
            setattr(config, name, default)
    for name, value in settings.items():
        setattr(config, name, value)
    check_parameters(config)
    if config.decoding not in ("verified", "autoregressive"):
        raise ValueError(
            f"decoding={config.decoding!r} fills MASK tokens, which this model was not trained for; pass "
            'decoding="verified", or make a WeDLM of it (`wedlm convert`, then `wedlm train`).'
        )
    num_looked_up = config.prompt_lookup_num_tokens
    config.prompt_lookup_num_tokens = None if num_looked_up == 0 and type(num_looked_up) is int else num_looked_up
    check_look_up(config)
    config.num_looked_up, config.prompt_lookup_num_tokens = num_looked_up, None
    mode = config.get_generation_mode()
    if config.decoding == "verified" and mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        refuse("generation mode", mode.value, config)
    return config


def resolved_config(model: PreTrainedModel, **arguments: Any) -> GenerationConfig:
    """The generation config that `model.generate(**arguments)` decodes with; refuses what generate() refuses."""
    if not is_stock(model):
        return resolved_generation_config(model, **arguments)
    own = {name: arguments.pop(name) for name in PARAMETERS if name in arguments}
    return resolved(resolved_generation_config(model, **arguments), own)


# --- From the arguments of generate() ---


def answer(model: PreTrainedModel, own: Callable, args: tuple, kwargs: dict[str, Any]):
    """Answers `model.generate(*args, **kwargs)` by this strategy; `own` is transformers' generate().

    That hands neither the streamer nor the tokenizer of stop strings to a function that decodes.
    """
    arguments = signature(own).bind(model, *args, **kwargs).arguments
    arguments |= arguments.pop("kwargs", {})
    del arguments["self"]
    strategy = arguments.pop("custom_generate", None)
    strategy = strategy if isinstance(strategy, Verified) else verified
    if not is_stock(model):  # it has the decoding itself
        return own(model, **{"decoding": "verified", **strategy.settings, **arguments})
    if (assistant := arguments.get("assistant_model")) is not None:
        raise ValueError(
            f"assistant_model={type(assistant).__name__} is not offered by verified decoding, whose drafts come from "
            "the text; leave out one of the two."
        )
    with_stop_strings(model, arguments)
    bound = strategy.bind(streamer=arguments.get("streamer"), synced_gpus=arguments.get("synced_gpus"))
    return own(model, **arguments, custom_generate=bound)


def with_stop_strings(model: PreTrainedModel, arguments: dict[str, Any]) -> None:
    """Makes a stopping criterion of stop strings and the tokenizer in the arguments of a call."""
    configs = [arguments.get("generation_config"), model.generation_config]
    given = [arguments.get("stop_strings"), *(getattr(config, "stop_strings", None) for config in configs)]
    stop_strings = next((value for value in given if value is not None), None)
    if stop_strings is not None and arguments.get("tokenizer") is not None:
        criterion = StopStringCriteria(tokenizer=arguments.pop("tokenizer"), stop_strings=stop_strings)
        arguments["stopping_criteria"] = StoppingCriteriaList([*(arguments.get("stopping_criteria") or ()), criterion])
        arguments["stop_strings"] = None


# --- Whether a model fits ---


def check_fits(model: PreTrainedModel) -> None:
    """Refuses a model that does not attend as it is told to, by forwards over a few tokens at its first call.

    Two branches behind one text, in one forward, have to get the logits that each gets alone; and a forward behind
    tokens that were not committed has to get those that it gets without them.
    """
    if not is_stock(model) or FITS.get(model) == attention_of(model.config):
        return
    was_training = model.training
    try:
        model.eval()
        # By rounding, a mixture of experts may now and then take another expert.
        fits = any(branches_are_apart(model, first_id) for first_id in (0, 10, 20))
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} does not fit verified decoding: a forward with a mask of four dimensions and a "
            f"cache with a length for each row fails ({type(error).__name__}: {' '.join(str(error).split())}); leave "
            "out custom_generate."
        ) from error
    finally:
        model.train(was_training)
    if not fits:
        raise ValueError(
            f"{type(model).__name__} does not fit verified decoding: two branches in one forward see each other, or "
            "tokens that were taken back (its attention or its cache does not follow the mask); leave out "
            "custom_generate."
        )
    FITS[model] = attention_of(model.config)


@torch.no_grad()
def branches_are_apart(model: PreTrainedModel, first_id: int) -> bool:
    """Whether logits are much nearer to those of each branch alone than to those where every query sees all before."""
    device = "cpu" if model.device.type == "meta" else model.device
    ids = torch.arange(first_id, first_id + 10, device=device) * 7919 % text_config_of(model).vocab_size
    # [L a b c d e]: a and b are one branch behind the text and L, c and d the other, e comes later.
    text, last, first, second, later = ids[:4], ids[4:5], ids[5:7], ids[7:9], ids[9:]
    got = branch_logits(model, text, last, first, second, later, is_blind=False)
    blind = branch_logits(model, text, last, first, second, later, is_blind=True)
    alone = [plain_logits(model, torch.cat([text, last, branch])) for branch in (first, second, later)]
    wanted = torch.cat([alone[0][-2:], alone[1][-2:], alone[2][-1:]]).float()
    distance, blind_distance = (got.float() - wanted).norm(), (blind.float() - wanted).norm()
    return bool(distance <= 1e-4 * wanted.norm() or distance < 0.3 * blind_distance)


def branch_logits(model, text, last, first, second, later, is_blind: bool) -> torch.Tensor:
    """The logits of both branches and of what comes later, `[5, vocabulary]`, as a verified step computes them.

    With `is_blind` every query sees all before it.
    """
    cache = RowCache(1, len(text) + 8, text.device)
    prefix = Text(text[None], text.new_tensor([len(text)]), text.new_zeros(1))
    forward_queries(model, WindowQueries.of_text(prefix), cache, len(text))
    cache.commit(prefix.lengths)
    steps = [(torch.cat([last, first, second]), [0, 1, 2, 1, 2], [0, 0, 0, 1, 1]), (later, [1], [0])]
    rows = []
    for ids, offsets, visible in steps:
        query = torch.arange(len(ids), device=text.device)[None]
        queries = WindowQueries(
            input_ids=ids[None],
            position_ids=text.new_tensor(offsets)[None] + len(text),
            logits_indices=query,
            predicted_slots=query,
            is_predicted=query >= 0,
            visible_prefix=None if is_blind else text.new_tensor(visible)[None],
        )
        held = int(cache.lengths)
        rows.append(forward_queries(model, queries, cache, held + len(ids))[0])
        cache.commit(text.new_tensor([1]))  # the branches are taken back
    return torch.cat([rows[0][1:], rows[1]])


def plain_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    return model(input_ids=ids[None], use_cache=False, return_dict=True).logits[0]


verified = Verified()

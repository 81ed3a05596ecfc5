"""A request of a running batch: a call of generate() on one row, resolved and checked before its first forward."""

import json
import math
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.continuous_batching.requests import RequestState

from wedlm.batching.shared_cache import CacheBudget
from wedlm.generation.call import Call
from wedlm.generation.custom_generate import Verified
from wedlm.generation.parameters import decoding_of
from wedlm.generation.static_steps import power_of_two
from wedlm.generation.transformers_internals import CACHE
from wedlm.generation.validation import refuse

# Token by token is verified decoding without drafts, which writes the same text in a shared forward.
AUTOREGRESSIVE = {
    "decoding": "verified", "window_size": 1, "prompt_lookup_num_tokens": 0, "acceptance_ratio": 1.0
}  # fmt: skip
# Arguments of generate() that a request lacks, each with its remedy.
NOT_OFFERED = {
    "streamer": "streaming=True",
    CACHE: "the batch's own memory of texts",
    "attention_mask": "the tokens alone",
    "num_return_sequences": "num_return_sequences in the generation_config of the batch",
    "inputs": "input_ids",
    "custom_generate": 'decoding="verified"',
}
OBJECTS = ("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn")  # that no other request may share
# Settings that a request cannot have, each with what its batch does instead.
IMPOSSIBLE = {
    "use_cache": (False, "shares a cache"),
    "output_scores": (True, "returns tokens"),
    "output_logits": (True, "returns tokens"),
}
LIMITS = ("max_length", "max_new_tokens")  # in which requests of a settings group may differ


@dataclass(eq=False)
class Request:
    """A prompt with its settings, and the state of its row in the batch."""

    state: RequestState  # the id, the prompt, and what transformers makes outputs of
    call: Call
    seed: int  # of what it samples
    settings_key: Hashable  # requests of equal keys share a settings group; None: it has a group of its own
    budget: CacheBudget
    tokens: list[int] = field(init=False)  # the prompt, and the final tokens behind it
    cache_row: int | None = field(init=False)  # of the shared cache, from its first prefill on
    num_queries: int = field(init=False)  # in the next forward
    num_committed: int = field(init=False)  # tokens whose keys and values are in the cache
    is_reusable: bool = True  # whether other requests may copy these keys and values

    def __post_init__(self):
        self.begin()

    def begin(self, cache_row: int | None = None) -> None:
        """Puts the request before its first prefill, in a row of the cache."""
        self.tokens = list(self.state.initial_tokens)
        self.cache_row, self.num_queries, self.num_committed = cache_row, 1, 0

    @property
    def request_id(self) -> str:
        return self.state.request_id

    @property
    def prompt_length(self) -> int:
        return len(self.state.initial_tokens)

    @property
    def num_new(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def max_new_tokens(self) -> int:
        return self.call.max_new_tokens

    @property
    def noise_bytes(self) -> int:
        """The bytes of the noise by which tokens are sampled."""
        return 4 * math.prod(self.call.noise_shape) if self.call.generation_config.do_sample else 0

    @classmethod
    def from_settings(
        cls,
        model: PreTrainedModel,
        state: RequestState,
        generation_config: GenerationConfig | None,
        settings: dict,
        seed: int,
        fixed_shapes: bool = False,
        captures: bool = False,
    ) -> "Request":
        """Resolves settings as generate() resolves its arguments, and refuses what it would refuse.

        With `fixed_shapes` the request shares no forward; with `captures` its forwards have a power of two of queries.
        """
        call = resolve(model, state.initial_tokens, generation_config, settings)
        is_alone = fixed_shapes or call.has_callbacks or any(settings.get(name) for name in OBJECTS)
        num_queries = 2 * call.window_size
        budget = CacheBudget(
            len(state.initial_tokens) + call.max_new_tokens, power_of_two(num_queries) if captures else num_queries
        )
        return cls(state, call, seed, None if is_alone else settings_key(call), budget)


def resolve(
    model: PreTrainedModel, tokens: list[int], generation_config: GenerationConfig | None, settings: dict
) -> Call:
    """The call of generate() on one row, which generate() itself prepares and does not run."""
    for name in NOT_OFFERED.keys() & settings.keys():
        raise ValueError(
            f"{name} is not offered for a request of a batch, which has {NOT_OFFERED[name]}; leave it out."
        )
    # (Another cache would be made for nothing: the batch has its own.)
    settings = {**settings, "num_return_sequences": 1, "cache_implementation": "dynamic"}
    settings["decoding"] = decoding_of(generation_config, settings, model)
    if settings["decoding"] == "autoregressive":
        settings |= AUTOREGRESSIVE
    strategy = Verified(loop=prepared_call, decoding=settings["decoding"])
    if generation_config is not None:  # transformers wants settings in one place, but for None, which it would refill
        generation_config = deepcopy(generation_config)
        nothing = {name: None for name, value in settings.items() if value is None}
        settings = generation_config.update(**settings) | nothing  # update returns what a config does not know
    device = torch.device("cpu") if model.device.type == "meta" else model.device
    input_ids = torch.tensor([tokens], dtype=torch.long, device=device)
    # Without a mask, transformers would take tokens that are pad_token_id for padding.
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    return model.generate(**inputs, generation_config=generation_config, custom_generate=strategy, **settings)


def prepared_call(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: None = None,
    **model_kwargs: Any,
) -> Call:
    """Stands in for the loop of generate(): returns the call, and refuses what a request of a batch cannot have."""
    if synced_gpus:
        refuse("synced_gpus", synced_gpus, generation_config)
    for name, (value, reason) in IMPOSSIBLE.items():
        if getattr(generation_config, name) == value:
            raise ValueError(f"{name}={value} is not offered for a request of a batch, which {reason}; leave it out.")
    return Call(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)


def settings_key(call: Call) -> str:
    """The settings that the requests of a group have in common."""
    # (`to_dict` would copy each value; what begins with an underscore follows from the others.)
    given = vars(call.generation_config).items()
    values = {name: value for name, value in given if name[0] != "_" and name not in LIMITS}
    values["window_size"] = call.window_size
    return json.dumps(values, sort_keys=True, default=lambda value: getattr(value, "tolist", value.__str__)())

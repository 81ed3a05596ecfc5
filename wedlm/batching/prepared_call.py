"""One request of a running batch: a call of generate() on one row, resolved and checked, and not begun."""

import json
import math
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from wedlm.batching.shared_cache import CacheBudget
from wedlm.generation.call import Call
from wedlm.generation.parameters import decoding_of
from wedlm.generation.transformers_internals import CACHE
from wedlm.generation.validation import refuse

ONE_BY_ONE = {"decoding": "verified", "window_size": 1, "prompt_lookup_num_tokens": 0, "acceptance_ratio": 1.0}
# Arguments of generate() that a request has not, each with its remedy.
OF_A_CALL = {
    "streamer": "streaming=True",
    CACHE: "the batch's own memory of texts",
    "attention_mask": "the tokens alone",
    "num_return_sequences": "num_return_sequences in the generation_config of the batch",
    "inputs": "input_ids",
    "custom_generate": "a loop of its own",
}
OBJECTS = ("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn")  # that no other row may share
OF_A_ROW = ("max_length", "max_new_tokens")


@dataclass
class PreparedCall:
    """A call of generate() on one row, before its first forward.

    Args:
        call (`Call`): What it resolves to.
        tokens (`list[int]`): The prompt.
        seed (`int`): The seed of the row's random numbers.
        key (`Hashable`): Rows of equal keys have the same settings; None: no other row has them.
        budget (`CacheBudget`): The entries of the cache that the row may take.
    """

    call: Call
    tokens: list[int]
    seed: int
    key: Hashable
    budget: CacheBudget

    @property
    def max_new_tokens(self) -> int:
        return self.call.max_new_tokens

    @property
    def noise_bytes(self) -> int:
        """The bytes of the noise of the row, where tokens are drawn."""
        return 4 * math.prod(self.call.noise_shape) if self.call.generation_config.do_sample else 0


def prepare(
    model: PreTrainedModel,
    tokens: list[int],
    generation_config: GenerationConfig | None,
    settings: dict,
    seed: int,
    fixed_shapes: bool = False,
) -> PreparedCall:
    """Resolves the settings of a request as generate() resolves its arguments, and refuses what that would refuse.

    Token by token is verified decoding without drafts, which writes the same text in a shared forward. With
    `fixed_shapes` the row shares no forward.
    """
    for name in OF_A_CALL.keys() & settings.keys():
        raise ValueError(f"{name} is not offered for a request of a batch, which has {OF_A_CALL[name]}; leave it out.")
    if decoding_of(generation_config, settings, model) == "autoregressive":
        settings = {**settings, **ONE_BY_ONE}
    device = torch.device("cpu") if model.device.type == "meta" else model.device
    input_ids = torch.tensor([tokens], dtype=torch.long, device=device)

    def prepared(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        synced_gpus=False,
        streamer=None,
        tokenizer=None,
        **model_kwargs,
    ) -> PreparedCall:
        check_request(generation_config, synced_gpus)
        generation_config.cache_implementation = None  # The batch has its own cache.
        model_kwargs[CACHE] = DynamicCache(config=model.config)  # Steps need a cache; that is the batch's.
        call = Call(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            synced_gpus=False,
            streamer=None,
            model_kwargs=model_kwargs,
        )
        is_alone = fixed_shapes or call.has_callbacks or any(settings.get(name) for name in OBJECTS)
        key = None if is_alone else settings_of(generation_config, call.window_size)
        budget = CacheBudget(len(tokens) + call.max_new_tokens, 2 * call.window_size)
        return PreparedCall(call, tokens, seed, key, budget)

    settings = {**settings, "num_return_sequences": 1}
    if generation_config is not None:  # transformers wants settings in one place, but for None, which it would refill
        generation_config = deepcopy(generation_config)
        nothing = {name: None for name, value in settings.items() if value is None}
        settings = generation_config.update(**settings) | nothing  # update returns what a config does not know
    return model.generate(input_ids, generation_config=generation_config, custom_generate=prepared, **settings)


def check_request(generation_config: GenerationConfig, synced_gpus: bool) -> None:
    if synced_gpus:
        refuse("synced_gpus", synced_gpus, generation_config)
    if generation_config.use_cache is False:
        raise ValueError(
            "use_cache=False is not offered for a request of a batch, which shares a cache; leave it out."
        )
    for name in ("output_scores", "output_logits"):
        if getattr(generation_config, name):
            raise ValueError(
                f"{name}=True is not offered for a request of a batch, which returns tokens; leave it out."
            )


def settings_of(generation_config: GenerationConfig, window_size: int) -> str:
    """The settings that rows with one policy have in common."""
    # (`to_dict` would copy each value; what begins with an underscore follows from the others.)
    given = vars(generation_config).items()
    values = {name: value for name, value in given if name[0] != "_" and name not in OF_A_ROW}
    values["window_size"] = window_size
    return json.dumps(values, sort_keys=True, default=lambda value: getattr(value, "tolist", value.__str__)())

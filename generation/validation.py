"""The refusals of everything that parallel decoding cannot do, and warnings of arguments that have no effect.

Every refusal is one sentence that names the argument, its value and the remedy.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import logging
from transformers.utils.generic import is_flash_attention_requested

from wedlm.generation.model_kind import (
    FULL,
    SLIDING,
    decodings_of,
    is_stock,
    is_trained_in_masks,
    layer_types_of,
    masks_shift,
    rope_types_of,
    text_config_of,
    unstretched_positions,
)
from wedlm.generation.parameters import AS_IT_IS, DEFAULTS, READS, check_values
from wedlm.generation.row_cache import flash_function
from wedlm.generation.sampling import NoTokenError
from wedlm.generation.transformers_internals import CACHE, attention_of, drops_cache, keeps_state

logger = logging.get_logger(__name__)
REMEDY_OF_CONVERTED = (
    'pass decoding="verified", or train it by `wedlm train` (if it was trained before 0.4.0, set mask_trained to true '
    "in its config.json)"
)
REMEDY_OF_STOCK = (
    'pass decoding="verified", or, if it is a Qwen2, Qwen3, Llama or Mistral, make a WeDLM of it (`wedlm convert`, '
    "then `wedlm train`)"
)
REMEDY_OF_LAYERS = (
    "use the stock model that this WeDLM was converted from, which decodes verified as it is (`wedlm convert "
    "--to-autoregressive` makes it again)"
)
REMEDY_OF_UNFIT = 'generate() decodes it by decoding="autoregressive"'
# Values that ask for nothing.
NO_WISHES = (("window_size", None), ("query_cost", None), ("acceptance_ratio", 1.0))

# Of what the forward of a stock model may get; images, for example, are not among it.
FORWARD_ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "logits_to_keep", "use_cache", CACHE)

# Arguments of generate() that parallel decoding does not offer, each with the values that ask for nothing.
NOT_OFFERED = {
    "assistant_early_exit": (None,),
    "cache_implementation": (None, "dynamic", "static"),
    "num_beams": (None, 1),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "use_mtp": (None, False),
}


def refuse(
    name: str,
    value: object,
    generation_config: GenerationConfig,
    remedy: str = "leave it out (or reset it in model.generation_config)",
    has_it: tuple[str, ...] = ("autoregressive",),
) -> None:
    """Refuses a call by the decoding of its config; `has_it` are those that offer what is asked for."""
    others = " or ".join(f'"{decoding}"' for decoding in has_it)
    raise ValueError(
        f"{name}={value!r} is not offered by decoding={generation_config.decoding!r}; {remedy}, or pass "
        f"decoding={others}."
    )


def check_inputs(inputs: object) -> None:
    """Refuses prompts in another form than generate() takes: `[batch, columns]` of token ids."""
    kind = type(inputs).__name__
    if isinstance(inputs, Mapping):
        raise ValueError(f"inputs is a {kind}; unpack it: model.generate(**inputs).")
    if isinstance(inputs, str) or isinstance(inputs, list | tuple) and any(isinstance(each, str) for each in inputs):
        raise ValueError(
            f"inputs is text ({kind}), and generate() takes token ids; tokenize it: "
            'model.generate(**tokenizer(text, return_tensors="pt")).'
        )
    if not isinstance(inputs, Tensor):
        raise ValueError(f"inputs is a {kind}; pass a tensor of token ids, such as torch.tensor([ids]).")
    if inputs.is_floating_point() or inputs.dtype == torch.bool:
        raise ValueError(f"input_ids has dtype {inputs.dtype}; pass token ids as integers, such as input_ids.long().")
    if inputs.ndim != 2:
        raise ValueError(
            f"input_ids has shape {tuple(inputs.shape)}, and generate() takes (batch, columns); pass input_ids[None] "
            "for a single prompt."
        )


def check_in_vocabulary(input_ids: Tensor, vocab_size: int) -> None:
    """Refuses ids that the model has no embedding for; waits for the device."""
    if ((input_ids < 0) | (input_ids >= vocab_size)).any():
        worst = input_ids.max().item() if input_ids.max() >= vocab_size else input_ids.min().item()
        raise ValueError(
            f"input_ids holds {worst}, and this model has tokens 0 to {vocab_size - 1}; tokenize with the model's own "
            "tokenizer."
        )


def check_decoding(model: PreTrainedModel, decoding: str) -> None:
    """Refuses a decoding that the model does not offer: it cannot verify, or was not trained to fill in MASK."""
    if is_stock(model) and decoding != "autoregressive":
        check_is_decoder(model)
    if decoding in decodings_of(model):
        return
    if not is_stock(model) and masks_shift(model):
        raise ValueError(
            f"decoding={decoding!r} fills MASK tokens, and those of this model predict the token behind them "
            '(mask_shift); pass decoding="verified".'
        )
    remedy = REMEDY_OF_STOCK if is_stock(model) else REMEDY_OF_CONVERTED
    raise ValueError(f"decoding={decoding!r} fills MASK tokens, which this model was not trained for; {remedy}.")


def check_support(model: PreTrainedModel, generation_config: GenerationConfig, model_kwargs: dict) -> None:
    """Refuses a call that parallel decoding cannot answer, before anything is computed."""
    config = text_config_of(model)
    if not is_stock(model):
        if SLIDING in layer_types_of(config):
            refuse("layer_types", config.layer_types, generation_config, REMEDY_OF_LAYERS)
        check_rope(model, math.inf, generation_config)
    check_attention(model, config, generation_config)
    check_values(generation_config, "prefill_chunk_size")
    for name, harmless in NOT_OFFERED.items():
        if (value := getattr(generation_config, name, None)) not in harmless:
            refuse(name, value, generation_config)
    for name, value in model_kwargs.items():
        if (
            name == "inputs_embeds"
            and value is not None
            or is_stock(model)
            and name not in FORWARD_ARGUMENTS
            and asks(value)
        ):
            refuse(name, type(value).__name__, generation_config)
    if (owner := getattr(model.prepare_inputs_for_generation, "__self__", model)) is not model:
        # PEFT's prompt, prefix and p-tuning bring their vectors in there, and parallel decoding never calls it.
        raise ValueError(
            f"{type(owner).__name__} prepares the inputs of each forward, as prompt, prefix and p-tuning do, and "
            f"decoding={generation_config.decoding!r} does not; use an adapter of another kind, such as LoRA, or pass "
            'decoding="autoregressive".'
        )
    if generation_config.use_cache is False:
        if model_kwargs.get(CACHE) is not None:
            raise ValueError(f"{CACHE} is a cache and use_cache=False wants none; leave out one of the two.")
        if generation_config.prefill_chunk_size is not None:
            raise ValueError(
                f"prefill_chunk_size={generation_config.prefill_chunk_size!r} needs a cache, and use_cache=False has "
                "none; leave out one of the two."
            )
    elif drops_cache(model):
        raise ValueError(
            "The model is in training with gradient checkpointing, which drops the cache that decoding="
            f"{generation_config.decoding!r} needs; call model.eval() first, or pass use_cache=False."
        )
    if (cache := model_kwargs.get(CACHE)) is not None:
        check_cache(cache, model, generation_config)


def check_rope(model: PreTrainedModel, most_positions: float, generation_config: GenerationConfig) -> None:
    """Refuses rotary embeddings that stretch so many positions by the longest row: rows would change each other."""
    config = text_config_of(model)
    for rope_type in rope_types_of(config) & {"dynamic", "longrope"}:
        if most_positions > (most := unstretched_positions(config)):
            fewer = f"ask for fewer tokens, so that they and the prompt stay clear of {most} positions"
            refuse("rope_type", rope_type, generation_config, fewer if is_stock(model) else REMEDY_OF_LAYERS)


def take_look_up(generation_config: GenerationConfig) -> None:
    """Checks the numbers of a look-up; in parallel decodings the number of drafts gets a name of ours.

    Under its own name, transformers would take its own assisted decoding. 0 turns off what verified decoding has by
    default.
    """
    num_looked_up, decoding = generation_config.prompt_lookup_num_tokens, generation_config.decoding
    if type(num_looked_up) is int and num_looked_up == 0:
        generation_config.prompt_lookup_num_tokens = None
    elif num_looked_up is not None and decoding not in AS_IT_IS:  # nothing verifies the drafts there
        refuse("prompt_lookup_num_tokens", num_looked_up, generation_config, has_it=AS_IT_IS)
    check_values(generation_config, "prompt_lookup_num_tokens", "max_matching_ngram_size")
    if decoding != "autoregressive":
        generation_config.num_looked_up, generation_config.prompt_lookup_num_tokens = num_looked_up, None


def check_attention(model: PreTrainedModel, config: PreTrainedConfig, generation_config: GenerationConfig) -> None:
    """Refuses attention implementations that parallel decoding has no form of."""
    name, uses_cache = attention_of(config), generation_config.use_cache is not False
    if is_stock(model):
        is_offered = name in ("eager", "sdpa")
    elif is_flash_attention_requested(config):
        is_offered = (uses_cache or generation_config.decoding != "verified") and flash_function(config) is not None
    else:
        is_offered = name in ("eager", "sdpa", "dual_stream") or (uses_cache and name == "flex_attention")
    if not is_offered:
        cache = "" if uses_cache else " with use_cache=False"
        raise ValueError(
            f"attn_implementation={name!r} is not offered by decoding={generation_config.decoding!r}{cache}; call "
            'model.set_attn_implementation("sdpa"), or pass decoding="autoregressive".'
        )


def asks(value: Any) -> bool:
    """Whether a keyword argument asks for anything; zeros, as token_type_ids of a text are, do not."""
    return bool(value.any()) if torch.is_tensor(value) else bool(value)


def holds_all(layer: Any) -> bool:
    """Whether a layer of a cache holds the keys and values of all its tokens, as far as is known."""
    if type(layer) is DynamicSlidingWindowLayer:
        return not layer.is_initialized or layer.get_seq_length() == layer.keys.shape[-2]
    return type(layer) is DynamicLayer


def check_is_decoder(model: PreTrainedModel) -> None:
    """Refuses models that are no decoders over a cache and positions that can be given."""
    name, arguments = type(model).__name__, signature(model.forward).parameters
    config = text_config_of(model)
    # (GPT-Neo's local attention counts the columns of its cache.)
    others = sorted({*layer_types_of(config), *getattr(config, "attention_layers", ())} - {FULL, SLIDING, "global"})
    reason = None
    if model.config.is_encoder_decoder:
        reason = "it has an encoder"
    elif CACHE not in arguments and "past_key_values" in arguments:
        reason = f"its forward takes past_key_values, and this transformers passes {CACHE}"
    elif CACHE not in arguments or keeps_state(model):
        reason = "it keeps a state that no cache can take back"
    elif others:
        reason = f"it has layers of {' and '.join(others)}"
    elif "position_ids" not in arguments:
        reason = "its forward takes no position_ids"
    if reason is not None:
        raise ValueError(f"{name} does not fit verified decoding: {reason}; {REMEDY_OF_UNFIT}.")


def check_cache(cache: Any, model: PreTrainedModel, generation_config: GenerationConfig) -> None:
    config = model.config
    kind = type(cache).__name__
    if isinstance(cache, DynamicCache) and cache.offloading:
        kind += "(offloading=True)"
    elif isinstance(cache, DynamicCache):
        other_layers = {type(layer) for layer in cache.layers if not holds_all(layer)}
        kind = None if not other_layers else f"{kind} of {', '.join(sorted(t.__name__ for t in other_layers))}"
    if kind is not None:
        raise ValueError(
            f"{CACHE}={kind} is not offered by decoding={generation_config.decoding!r}; pass a plain "
            'DynamicCache, or decoding="autoregressive".'
        )
    if cache.get_seq_length() > 0 and not is_stock(model):  # (layers of others may differ)
        heads, width = config.num_key_value_heads, config.head_dim
        layers = [(layer.keys.shape[1], layer.keys.shape[3]) for layer in cache.layers]
        if layers != [(heads, width)] * config.num_hidden_layers:
            raise ValueError(
                f"{CACHE} holds {len(layers)} layers of (heads, head_dim)={layers[0]}, and this model has "
                f"{config.num_hidden_layers} of {(heads, width)}; pass the cache of this model."
            )


def warn_of_call(
    model: PreTrainedModel, decoding: str, generation_config: GenerationConfig | None, arguments: dict
) -> None:
    """Warns, once in a process, of parameters that the decoding does not read, and of MASKs that were never learnt.

    The parameters are those of the `generation_config` that was passed and of the keyword `arguments`.
    """
    if decoding not in READS:  # it will be refused
        return
    passed = vars(generation_config) if isinstance(generation_config, GenerationConfig) else {}
    for name in sorted(DEFAULTS.keys() - {"decoding", *READS[decoding]}):
        own = getattr(model.generation_config, name)
        value = arguments.get(name, passed.get(name, own))
        if (name not in arguments and value == own) or (name, value) in NO_WISHES:
            continue
        logger.warning_once(
            f"decoding={decoding!r} does not read {name} (it reads {', '.join(READS[decoding]) or 'no parameters'}); "
            "leave it out, or choose another decoding."
        )
    fills_masks = decoding not in AS_IT_IS and decoding in decodings_of(model)
    if fills_masks and not is_trained_in_masks(model):
        logger.warning_once(
            f"decoding={decoding!r} writes nonsense with a model that was converted from "
            f"{model.config.converted_from!r} and not trained to fill in MASK; {REMEDY_OF_CONVERTED}."
        )


@contextmanager
def named_weights(model: PreTrainedModel) -> Iterator[None]:
    """Where no token can be chosen because of a broken weight, the error names the weight."""
    try:
        yield
    except NoTokenError:
        for name, weight in model.named_parameters():
            if weight.is_floating_point() and weight.device.type != "meta" and not weight.isfinite().all():
                raise NoTokenError(
                    f"The weight {name} holds values that are not finite, so that the model predicts nothing; load "
                    "the checkpoint again, or go back to one from before its training failed."
                ) from None
        raise

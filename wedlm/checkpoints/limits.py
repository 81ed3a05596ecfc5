"""The decodings that a checkpoint offers, and what limits them: the answers of generate() itself."""

from copy import copy

import torch
from transformers import GenerationConfig

from wedlm.checkpoints.resolve import GENERATION_FILE
from wedlm.generation.parameters import DECODINGS, DEFAULTS
from wedlm.generation.sampling import reads_no_text
from wedlm.generation.transformers_internals import processors_of, resolved_generation_config
from wedlm.modeling_wedlm.modeling_wedlm import WeDLMForCausalLM


def offered_decodings(model: WeDLMForCausalLM, generation_fields: dict) -> list[str]:
    """The decodings that `generate()` does not refuse with these fields of generation_config.json."""
    offered = []
    for decoding in DECODINGS:
        try:
            resolved_generation_config(with_generation_fields(model, generation_fields), decoding=decoding)
            if decoding != "autoregressive":
                model.config.require_mask_token_id()
            offered.append(decoding)
        except Exception:  # a wrong field raises errors of many kinds
            continue
    return offered


def limits_of_parallel_decoding(model: WeDLMForCausalLM, generation_fields: dict) -> list[str]:
    """A sentence for each thing that keeps a checkpoint from decoding in parallel, or slows it down."""
    try:
        as_given = with_generation_fields(model, generation_fields)
        decoding = resolved_generation_config(as_given).decoding
        others = {name: value for name, value in generation_fields.items() if name not in DEFAULTS}
        reading = [f"{name}={value!r}" for name, value in others.items() if reads_text(as_given, name, value)]
    except Exception as error:  # a wrong field raises errors of many kinds
        return [f"generate() will refuse this checkpoint until it is changed: {error}"]
    if decoding == "autoregressive":
        try:
            resolved_generation_config(as_given, decoding="verified")
        except ValueError as error:
            return [f"This checkpoint decodes token by token only: {error}"]
    if not reading:
        return []
    return [
        f"{GENERATION_FILE} has {', '.join(reading)}: it reads the text, so that tokens are chosen left to right and "
        "fewer are filled per forward; remove it there for full speed."
    ]


def with_generation_fields(model: WeDLMForCausalLM, generation_fields: dict) -> WeDLMForCausalLM:
    """The same model with another generation_config; the weights are shared, and `model` keeps its own config."""
    other = copy(model)
    other.generation_config = GenerationConfig.from_dict(generation_fields)
    return other


def reads_text(model: WeDLMForCausalLM, name: str, value: object) -> bool:
    """Whether a field of generation_config.json asks for a processor that reads the text before a slot."""
    config = GenerationConfig.from_dict({"eos_token_id": [0], "do_sample": True, name: value})  # or it would warn
    return not all(map(reads_no_text, processors_of(model, config, torch.zeros(1, 1, dtype=torch.long))))

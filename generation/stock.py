"""Causal language models of transformers that are no WeDLM: what they are, and how they are called."""

import math
from contextlib import nullcontext
from inspect import signature

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from wedlm.generation.parameters import AS_IT_IS, decodings_with, says_trained
from wedlm.generation.transformers_internals import attention_of

FULL, SLIDING = "full_attention", "sliding_attention"


def is_stock(model: PreTrainedModel) -> bool:
    return model.config.model_type != "wedlm"


def text_config_of(model: PreTrainedModel) -> PreTrainedConfig:
    """The config of the decoder; that of a vision-language model has others beside it."""
    return model.config.get_text_config(decoder=True)


def mask_token_of(model: PreTrainedModel) -> int | None:
    """The id of the MASK token. A stock model has none but that of a draft adapter, a number behind its tokens."""
    if not is_stock(model):
        return model.config.require_mask_token_id()
    embedding = model.get_input_embeddings()
    return embedding.mask_token_id if getattr(embedding, "has_active_mask", False) else None


def is_trained_in_masks(model: PreTrainedModel) -> bool:
    """Whether a model fills in MASK by its training, as far as its config and adapters tell.

    An adapter of PEFT counts as such a training, except for a draft adapter, whose guesses have to be verified.
    """
    if is_stock(model):
        return False
    is_adapted = getattr(model, "peft_config", None) and not has_drafts_of_peft(model)
    return says_trained(model.config) or bool(is_adapted)


def has_drafts_of_peft(model: PreTrainedModel) -> bool:
    return hasattr(model.get_input_embeddings(), "drafts_at")


def decodings_of(model: PreTrainedModel) -> tuple[str, ...]:
    """The decodings that a model offers."""
    if is_stock(model):
        return AS_IT_IS
    return decodings_with(is_trained_in_masks(model), model.config.drafts is not None or has_drafts_of_peft(model))


def max_positions_of(model: PreTrainedModel) -> float:
    """The most positions of a text, without a limit where the config names none."""
    return getattr(text_config_of(model), "max_position_embeddings", None) or math.inf


def layer_types_of(config: PreTrainedConfig) -> list[str]:
    """The kinds of attention among the layers."""
    types = getattr(config, "layer_types", None)
    if types is None:
        types = [FULL if getattr(config, "sliding_window", None) is None else SLIDING]
    return sorted(set(types))


def rope_parameters_of(config: PreTrainedConfig) -> list[dict]:
    """The parameters of rotary embeddings, which may differ by the type of a layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return [parameters, *(value for value in parameters.values() if isinstance(value, dict))]


def rope_types_of(config: PreTrainedConfig) -> set[str]:
    return {each["rope_type"] for each in rope_parameters_of(config) if each.get("rope_type") is not None}


def unstretched_positions(config: PreTrainedConfig) -> float:
    """The most positions that rotary embeddings of a changing kind leave as they are."""
    name = "original_max_position_embeddings"
    given = [getattr(config, name, None), *(each.get(name) for each in rope_parameters_of(config))]
    return min(filter(None, [*given, getattr(config, "max_position_embeddings", None)]), default=math.inf)


def within_positions(model: PreTrainedModel, position_ids: torch.Tensor) -> torch.Tensor:
    """The positions, but none behind the last one that is learned, where drafts and unneeded queries may stand."""
    most = max_positions_of(model)
    if rope_types_of(text_config_of(model)) or most == math.inf:
        return position_ids
    return position_ids.clamp(max=int(most) - 1)


# --- One forward ---


def masks_of_layers(
    model: PreTrainedModel, is_seen: torch.Tensor | None, position_ids: torch.Tensor, starts: torch.Tensor | None
) -> dict[str, torch.Tensor] | torch.Tensor | None:
    """The mask as a stock model takes it: of four dimensions, by layer type where layers differ.

    Args:
        model (`PreTrainedModel`): The model.
        is_seen (`torch.BoolTensor` of shape `(batch, 1, queries, entries)`, *optional*): The entries that each query
            sees. None: the model makes its own causal mask.
        position_ids (`torch.LongTensor` of shape `(batch, queries)`): The positions of the queries.
        starts (`torch.LongTensor` of shape `(batch,)`, *optional*): The entry of each row's first query; before it
            stands the text, in order. None: there are no entries but the queries.
    """
    if is_seen is None:
        return None
    config, masks = text_config_of(model), {}
    for kind in layer_types_of(config):
        mask = is_seen
        if kind == SLIDING:
            oldest = position_ids - config.sliding_window
            mask = (
                mask
                & (positions_of_entries(is_seen.shape[-1], position_ids, starts)[:, None] > oldest[..., None])[:, None]
            )
        if attention_of(config) == "eager":  # it adds its mask to the scores
            mask = torch.zeros_like(mask, dtype=model.dtype).masked_fill(~mask, torch.finfo(model.dtype).min)
        masks[kind] = mask
    return masks if len(masks) > 1 else mask


def positions_of_entries(num_entries: int, position_ids: torch.Tensor, starts: torch.Tensor | None) -> torch.Tensor:
    """The position of each entry, `[batch, entries]`."""
    if starts is None:
        return position_ids
    entry = torch.arange(num_entries, device=position_ids.device)
    query = entry - starts[:, None].to(position_ids.device)
    positions = position_ids.gather(1, query.clamp(0, position_ids.shape[1] - 1))
    return torch.where(query < 0, entry, positions)


def stock_logits(model: PreTrainedModel, inputs: dict, logits_indices: torch.Tensor) -> torch.Tensor:
    """The logits of the queries `logits_indices`, `[batch, n]`; the head sees few others."""
    embedding = model.get_input_embeddings()
    adapter = getattr(embedding, "drafts_at", lambda input_ids: nullcontext())
    with adapter(inputs["input_ids"]):
        if logits_indices.shape[1] == inputs["input_ids"].shape[1]:  # all, in their order
            return model(**inputs).logits
        columns, index = logits_indices.unique(return_inverse=True)  # waits for the device
        if "logits_to_keep" in signature(model.forward).parameters:
            logits = model(**inputs, logits_to_keep=columns).logits
        else:
            logits = model(**inputs).logits[:, columns]
    return logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))

"""A WeDLM, or a stock model (any other causal language model of transformers): what it is, and how it is called."""

import math
from contextlib import nullcontext
from inspect import signature

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import is_flash_attention_requested

from wedlm.generation.parameters import AS_IT_IS, decodings_with, says_shifted, says_trained
from wedlm.generation.row_cache import MOST_QUERIES, RowCache, seen_entries
from wedlm.generation.sequences import Queries
from wedlm.generation.transformers_internals import CACHE, attention_of

FULL, SLIDING = "full_attention", "sliding_attention"


def is_stock(model: PreTrainedModel) -> bool:
    return model.config.model_type != "wedlm"


def text_config_of(model: PreTrainedModel) -> PreTrainedConfig:
    """The config of the decoder; that of a vision-language model has others beside it."""
    return model.config.get_text_config(decoder=True)


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


def masks_shift(model: PreTrainedModel) -> bool:
    """Whether a MASK predicts the token behind it, as in I-DLM, and not that of its own place.

    The config says so, of the model or of the draft adapter in it, or the active draft adapter of PEFT.
    """
    is_own = not is_stock(model) and says_shifted(model.config)
    return is_own or getattr(model.get_input_embeddings(), "masks_shift", False)


def decodings_of(model: PreTrainedModel) -> tuple[str, ...]:
    """The decodings that a model offers. (Streaming needs predictions of MASKs for their own places.)"""
    if is_stock(model) or masks_shift(model):
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


# --- One forward pass ---


class ModelKind:
    """What the loop has to know of a model; each call makes one. This is for a WeDLM, StockKind for all others."""

    needs_mask = False  # Without a cache and branches, the model makes its own causal mask.

    def __init__(self, model: PreTrainedModel):
        self.model, self.config = model, text_config_of(model)

    @property
    def mask_token_id(self) -> int | None:
        return self.model.config.require_mask_token_id()

    def forward(self, queries: Queries, cache: RowCache | None, valid_length: int) -> Tensor:
        """The logits of the queries that predict slots, `[batch, predicted, vocabulary]`.

        The forward pass reads `valid_length` leading entries of the cache.
        """
        home = queries.input_ids.device
        device = home if self.model.device.type == "meta" else self.model.device  # meta: accelerate moves its weights
        is_seen = self.begin(queries, cache, valid_length)
        if home != device:
            queries, is_seen = queries.to(device), None if is_seen is None else is_seen.to(device)
        inputs = {
            "input_ids": queries.input_ids,
            **self.mask_and_positions(is_seen, queries.position_ids, None if cache is None else cache.lengths),
            "use_cache": cache is not None,
            "return_dict": True,
            CACHE: cache,
        }
        return self.logits(inputs, queries.logits_indices).to(home)

    def begin(self, queries: Queries, cache: RowCache | None, valid_length: int) -> Tensor | None:
        """Tells the cache of the forward pass; returns which entries each query sees, None where attention knows.

        They are `[batch, 1, queries, entries]`.
        """
        num_queries, prefix = queries.input_ids.shape[1], queries.visible_prefix
        if cache is not None:
            # Flash attention reads the length of each row. (A graph cannot hold its function for caches.)
            knows_lengths = not cache.is_static and is_flash_attention_requested(self.config)
            return cache.begin_forward(num_queries, valid_length, prefix, knows_lengths, queries.num_needed)
        if prefix is None and not self.needs_mask:
            return None
        last = torch.arange(num_queries, device=queries.input_ids.device).expand_as(queries.input_ids)
        return seen_entries(last, prefix, num_queries)

    def mask_and_positions(self, is_seen: Tensor | None, position_ids: Tensor, starts: Tensor | None) -> dict:
        return {"attention_mask": is_seen, "position_ids": position_ids}

    def logits(self, inputs: dict, indices: Tensor) -> Tensor:
        """The logits of the queries `indices`, `[batch, n]`; the head sees no others."""
        return self.model(**inputs, queries_to_keep=indices).logits


class StockKind(ModelKind):
    """A causal language model of transformers as it is."""

    needs_mask = True

    @property
    def mask_token_id(self) -> int | None:
        """None but that of a draft adapter, a number behind the model's tokens."""
        embedding = self.model.get_input_embeddings()
        return embedding.mask_token_id if getattr(embedding, "has_active_mask", False) else None

    def mask_and_positions(self, is_seen: Tensor | None, position_ids: Tensor, starts: Tensor | None) -> dict:
        """Clamps positions to the last one that is learned: those of drafts and unneeded queries may lie past it."""
        most = max_positions_of(self.model)
        if not rope_types_of(self.config) and most < math.inf:
            position_ids = position_ids.clamp(max=int(most) - 1)
        mask = masks_of_layers(self.model, is_seen, position_ids, starts)
        return {"attention_mask": mask, "position_ids": position_ids}

    def logits(self, inputs: dict, indices: Tensor) -> Tensor:
        """As of a WeDLM, but the head sees each column that any row asks for."""
        embedding = self.model.get_input_embeddings()
        adapter = getattr(embedding, "drafts_at", lambda input_ids: nullcontext())
        with adapter(inputs["input_ids"]):
            if indices.shape[1] == inputs["input_ids"].shape[1]:  # all; behind a row's own ones nothing is read
                return self.model(**inputs).logits
            columns, index = indices.unique(return_inverse=True)  # waits for the device
            if "logits_to_keep" in signature(self.model.forward).parameters:
                logits = self.model(**inputs, logits_to_keep=columns).logits
            else:
                logits = self.model(**inputs).logits[:, columns]
        return logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))


def kind_of(model: PreTrainedModel) -> ModelKind:
    return StockKind(model) if is_stock(model) else ModelKind(model)


def masks_of_layers(
    model: PreTrainedModel, is_seen: Tensor | None, position_ids: Tensor, starts: Tensor | None
) -> dict[str, Tensor] | Tensor | None:
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
        # Eager attention adds its mask to the scores. So does sdpa, which would turn booleans into such a mask anew in
        # each layer.
        if attention_of(config) == "eager" or is_seen.shape[2] <= MOST_QUERIES:
            mask = torch.zeros_like(mask, dtype=model.dtype).masked_fill(~mask, torch.finfo(model.dtype).min)
        masks[kind] = mask
    return masks if len(masks) > 1 else mask


def positions_of_entries(num_entries: int, position_ids: Tensor, starts: Tensor | None) -> Tensor:
    """The position of each entry, `[batch, entries]`."""
    if starts is None:
        return position_ids
    entry = torch.arange(num_entries, device=position_ids.device)
    query = entry - starts[:, None].to(position_ids.device)
    positions = position_ids.gather(1, query.clamp(0, position_ids.shape[1] - 1))
    return torch.where(query < 0, entry, positions)

"""All decoder layers of a fused model: for few rows in one call, for many with the products of torch."""

import threading
from typing import Any, NamedTuple

import torch
from torch import nn

from wedlm.fused import native
from wedlm.fused.layer import (
    FusedLayer,
    Known,
    KnownDrafts,
    are_few,
    has_own_forward,
    knows_attention,
    refresh,
    sees,
)
from wedlm.fused.memory import note_written, reserved
from wedlm.generation.row_cache import RowCache
from wedlm.generation.transformers_internals import CACHE, has_hooks_on, records_outputs
from wedlm.modeling_wedlm.drafts import MASKED


class Running(threading.local):
    """The stack whose decoder runs in this thread."""

    stack: "Stack | None" = None


RUNNING = Running()


class Layers(nn.ModuleList):
    """The layers of a decoder, which in its forward are one: that of all layers."""

    def __getitem__(self, index):
        stack = RUNNING.stack
        if isinstance(index, slice) and stack is not None and stack.layers is self:
            if range(len(self))[index] == range(len(self)):
                return (stack,)
        return super().__getitem__(index)


class NeededQueries(NamedTuple):
    """The queries of a batch that something reads, some of `batch * queries`."""

    indices: torch.Tensor  # [n]
    batch: int
    queries: int

    def taken(self, values: torch.Tensor) -> torch.Tensor:
        """Those of `[batch, queries, ...]`, or of what all rows of the batch share, as one row `[1, n, ...]`."""
        return values.expand(self.batch, *values.shape[1:]).flatten(0, 1)[self.indices][None]

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Undoes `taken`, with zeros for the other queries."""
        everywhere = values.new_zeros(self.batch * self.queries, *values.shape[2:])
        return everywhere.index_copy_(0, self.indices, values[0]).unflatten(0, (self.batch, self.queries))


class Stack:
    """The layers of a decoder as one."""

    def __init__(self, layers: Layers):
        self.layers = layers
        self.fused: list[FusedLayer] = []
        self.described: Any = None  # an array of native.Layer
        self.known = Known()
        self.drafts: KnownDrafts | None = None

    def __reduce__(self):  # a copy of the model binds its own layers
        return type(None), ()

    def __call__(self, hidden_states: torch.Tensor, **kwargs) -> torch.Tensor:
        options = dict(kwargs)
        is_text = options.pop("is_text", MASKED.is_text)
        if self.is_for_c(hidden_states) and self.bind(hidden_states.dtype, is_text is not None):
            behind = self.in_c(hidden_states, is_text, **options)
            if behind is not None:
                return behind
        for layer in self.layers:
            hidden_states = layer(hidden_states, **kwargs)
        return hidden_states

    def is_for_c(self, hidden_states: torch.Tensor) -> bool:
        if native.NUMBER is None or torch.compiler.is_compiling() or has_own_forward(self.layers[0], hidden_states):
            return False
        return not (records_outputs() or has_hooks_on(self.layers))

    def bind(self, dtype: torch.dtype, has_masks: bool) -> bool:
        """Makes the layers ready for C; False if not all of them are fused."""
        layers = list(self.layers)
        is_bound = len(self.fused) == len(layers) > 0 and self.known.is_current()
        is_bound = is_bound and all(layer.fused is fused for layer, fused in zip(layers, self.fused, strict=True))
        if not is_bound:
            for layer in layers:
                if "fused" not in vars(layer):
                    return False
                refresh(layer, dtype, has_masks=False)
            if any(layer.fused is None or layer.fused.shape != layers[0].fused.shape for layer in layers):
                return False
            if layers[0].fused.described is None:
                return False
            self.fused, self.drafts = [layer.fused for layer in layers], None
            self.known = Known.of_all([fused.known for fused in self.fused])
            self.described = self.description()
        if has_masks and not (self.drafts is not None and self.drafts.are_current()):
            for fused in self.fused:
                fused.refresh_drafts(dtype)
            self.drafts = KnownDrafts([merged for fused in self.fused for merged in fused.merged])
            self.described = self.description()
        return True

    def description(self) -> Any:
        """The layers as C reads them, with what has to live as long, since another thread may bind them anew."""
        described = (native.Layer * len(self.fused))(*[fused.described for fused in self.fused])
        described.fused, described.kept = self.fused, [fused.described for fused in self.fused]
        return described

    def in_c(
        self, hidden_states, is_text, position_embeddings=None, attention_mask=None, **kwargs
    ) -> torch.Tensor | None:
        """The hidden states behind all layers; None where attention or the cache are none that C knows."""
        described, cache, attention = self.described, kwargs.get(CACHE), self.layers[0].self_attn
        first, (batch, queries, _) = described.fused[0], hidden_states.shape
        if not first.takes(hidden_states, position_embeddings):
            return None
        if not knows_attention(attention, hidden_states.dtype, attention_mask, **kwargs):
            return None
        if is_few := are_few(hidden_states):
            hidden_states = hidden_states.clone(memory_format=torch.contiguous_format)
        forward, _kept = first.forward_of(hidden_states, position_embeddings, is_text)
        if cache is not None:
            empty = hidden_states.new_empty(batch, first.num_keys, 0, first.width)
            memory = reserved(cache, len(described), queries, empty)
            if memory is None:
                return None
            forward.states = native.addressof(memory.states)
            forward.key_strides[:], forward.value_strides[:] = memory.strides
            if isinstance(cache, RowCache):
                forward.lengths, forward.entries = cache.lengths.data_ptr(), cache.current.valid_length
            else:
                forward.entries = cache.layers[0].length + queries
        if not sees(forward, attention, attention_mask, **kwargs):
            return None
        forward.layers = native.addressof(described)
        if is_few:
            forward.num_layers = len(described)
            forward.stages = native.PROJECT | native.STORE | native.ATTEND | native.COMPLETE
            native.forward(forward)
        else:
            needed = needed_queries(hidden_states, attention_mask, **kwargs)
            hidden_states = of_many(forward, described.fused, needed, hidden_states, is_text)
        if cache is not None:
            note_written(cache, queries)
        return hidden_states


def of_many(
    forward: native.Forward, layers: list[FusedLayer], needed: NeededQueries | None, hidden_states, is_text
) -> torch.Tensor:
    """All layers, whose products are torch's; queries that are not needed become zeros."""
    attended = hidden_states.new_empty(*hidden_states.shape[:2], forward.num_heads * forward.width)
    forward.attended, forward.stages = attended.data_ptr(), native.ROTATE | native.STORE | native.ATTEND
    if needed is not None:
        hidden_states, is_text = needed.taken(hidden_states), None if is_text is None else needed.taken(is_text)
    for fused in layers:
        heads = fused.query_key_value(hidden_states, is_text=is_text)
        heads = heads.contiguous() if needed is None else needed.spread(heads)  # C reads it by its address
        forward.heads = heads.data_ptr()
        native.forward(forward)
        given = attended if needed is None else needed.taken(attended)
        hidden_states = fused.output(given, hidden_states, is_text)
        hidden_states = fused.down(fused.gate_up(hidden_states, is_text=is_text), hidden_states, is_text)
        forward.layers += native.sizeof(native.Layer)
        if forward.states:
            forward.states += native.sizeof(native.States)
    return hidden_states if needed is None else needed.spread(hidden_states)


def needed_queries(hidden_states: torch.Tensor, attention_mask=None, **kwargs) -> NeededQueries | None:
    """The queries that are no padding; None if all are, or nothing tells.

    Padding is what our own loop does not count or, by a mask, what neither sees anything nor is seen.
    """
    batch, queries, _ = hidden_states.shape
    cache = kwargs.get(CACHE)
    counted = cache.current.num_needed if isinstance(cache, RowCache) and cache.current is not None else None
    if counted is not None:
        is_needed = torch.arange(queries, device=counted.device) < counted
    elif attention_mask is not None and attention_mask.dtype == torch.bool:
        is_seen = attention_mask[:, 0]
        is_needed = is_seen.any(-1) | is_seen[..., -queries:].any(1)
    else:
        return None
    if is_needed.shape != (batch, queries) or is_needed.all() or not is_needed.any():
        return None
    return NeededQueries(is_needed.flatten().nonzero()[:, 0].to(hidden_states.device), batch, queries)


def stacked_forward(decoder: nn.Module, *args, **kwargs):
    """The forward of a decoder, whose layers are one."""
    layers = decoder.layers
    if type(layers) is not Layers or torch.compiler.is_compiling() or has_several_masks(decoder.config):
        return type(decoder).forward(decoder, *args, **kwargs)
    if decoder.stack is None or decoder.stack.layers is not layers:
        decoder.stack = Stack(layers)
    outer, RUNNING.stack = RUNNING.stack, decoder.stack
    try:
        return type(decoder).forward(decoder, *args, **kwargs)
    finally:
        RUNNING.stack = outer


def has_several_masks(config) -> bool:
    """Whether layers get different masks, as those with a window beside others do."""
    return len(set(getattr(config, "layer_types", None) or ())) > 1

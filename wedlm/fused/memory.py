"""Where forwards of fused models write keys and values: memory that grows in steps, so that nothing is copied."""

from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from wedlm.fused.native import States
from wedlm.generation.row_cache import RowCache, grown

STEP, SHARE = 256, 4  # memory grows by so many entries at least, and by a share of what there are


class GrowingLayer(DynamicLayer):
    """A layer of a DynamicCache whose keys and values are the beginning of larger memory."""

    memory: list[torch.Tensor] | None = None  # keys and values, [batch, heads, capacity, head_dim] each
    length = 0  # the entries of the memory that are in use
    num_shown = 0  # entries that somebody may hold, so that nothing may overwrite them

    @classmethod
    def adopt(cls, layer: DynamicLayer) -> None:
        """Turns a layer of transformers into one that grows in steps; whoever holds it holds that."""
        states = [vars(layer).pop(name) for name in ("keys", "values")]
        layer.__class__ = cls
        layer.own_states = states  # where there is no memory

    keys = property(lambda self: self.shown(0), lambda self, states: self.replace(0, states))
    values = property(lambda self: self.shown(1), lambda self, states: self.replace(1, states))

    def shown(self, kind: int) -> torch.Tensor | None:
        if self.memory is None:
            return self.own_states[kind]
        self.num_shown = max(self.num_shown, self.length)
        return self.memory[kind][:, :, : self.length]

    def replace(self, kind: int, states: torch.Tensor | None) -> None:
        if self.memory is not None:
            self.own_states, self.memory = [self.shown(0), self.shown(1)], None
        self.own_states[kind] = states

    def reserve(self, number: int) -> list[torch.Tensor]:
        """Returns memory with room for so many entries behind those in use."""
        if self.memory is None:
            before, self.length = self.own_states, self.own_states[0].shape[2]
        elif self.num_shown <= self.length <= self.memory[0].shape[2] - number:
            return self.memory
        else:
            before = [states[:, :, : self.length] for states in self.memory]
        capacity = self.length + number + max(STEP, self.length // SHARE)
        with torch.inference_mode(False), torch.no_grad():  # others may write to it later, in any mode
            self.memory, self.num_shown = [grown(states, capacity) for states in before], 0
        self.own_states = [None, None]
        return self.memory

    # What transformers calls.

    def update(self, key_states, value_states, *args, **kwargs):
        states = self.own_states if self.memory is None else self.memory
        is_own = torch.is_grad_enabled() or torch.compiler.is_compiling() or self.get_seq_length() == 0
        if is_own or not key_states.dtype == value_states.dtype == states[0].dtype == states[1].dtype:
            return super().update(key_states, value_states, *args, **kwargs)
        memory, number = self.reserve(key_states.shape[2]), key_states.shape[2]
        for states, new in zip(memory, (key_states, value_states), strict=True):
            states[:, :, self.length : self.length + number] = new
        self.length += number
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return super().get_seq_length() if self.memory is None else self.length

    def crop(self, tokens_to_remove: int) -> None:
        if self.memory is None or not -self.length <= tokens_to_remove <= 0:
            super().crop(tokens_to_remove)
        else:
            self.length += tokens_to_remove

    def __reduce__(self):
        """A copy is a layer of transformers' own."""
        state = {name: value for name, value in vars(self).items() if name not in OWN}
        state |= {name: copy_of(getattr(self, name)) for name in ("keys", "values")}
        return DynamicLayer, (), state


OWN = ("memory", "length", "num_shown", "own_states")


def copy_of(states: torch.Tensor | None) -> torch.Tensor | None:
    return None if states is None else states.clone()


@dataclass
class Memory:
    """The keys and values of all layers, where a forward reads and writes them.

    It does not keep the tensors, so that memory that has grown is given back layer by layer.
    """

    tensors: list[ref]  # keys and values of each layer in turn, [batch, heads, capacity, head_dim]
    states: Any  # an array of `States`
    strides: tuple[tuple[int, ...], tuple[int, ...]]  # of keys and values: of batch row, head and entry

    def __reduce__(self):  # a copy of a cache has other addresses
        return type(None), ()


def reserved(cache: Cache, num_layers: int, queries: int, empty: torch.Tensor) -> Memory | None:
    """Room for the queries of a forward in all layers; None where only `cache.update` makes it.

    `empty`, `[batch, heads, 0, head_dim]`, has the shape of keys and values.
    """
    of_cache = tensors_of_rows if isinstance(cache, RowCache) else tensors_of_entries
    tensors = of_cache(cache, num_layers, queries, empty)
    if len(tensors) != 2 * num_layers or not fits(tensors[0], empty):
        return None
    known: Memory | None = getattr(cache, "fused_memory", None)
    if known is not None and len(known.tensors) == len(tensors):
        if all(one() is other for one, other in zip(known.tensors, tensors, strict=True)):
            return known
    strides = [tensor.stride() for tensor in tensors]
    if strides != strides[:2] * num_layers or not all(fits(tensor, empty) for tensor in tensors):
        return None
    states = (States * num_layers)()
    for state, keys, values in zip(states, tensors[::2], tensors[1::2], strict=True):
        state.keys, state.values = keys.data_ptr(), values.data_ptr()
    cache.fused_memory = Memory(list(map(ref, tensors)), states, (strides[0][:3], strides[1][:3]))
    return cache.fused_memory


def fits(states: torch.Tensor, empty: torch.Tensor) -> bool:
    """Whether keys or values are such as the model's."""
    is_alike = states.dtype == empty.dtype and states.is_cpu and states.stride(3) == 1
    return is_alike and states[:, :, :0].shape == empty.shape


def tensors_of_rows(cache: RowCache, num_layers: int, queries: int, empty: torch.Tensor) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    if cache.is_static or cache.current is None:
        return tensors
    cache.make_layers(num_layers)
    for layer in cache.layers:
        if not layer.is_initialized:
            layer.lazy_initialization(empty, empty)
        layer.reserve(cache.current.valid_length, cache.capacity)
        tensors += (layer.keys, layer.values)
    return tensors


def tensors_of_entries(cache: DynamicCache, num_layers: int, queries: int, empty: torch.Tensor) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        return tensors
    while len(cache.layers) < num_layers and cache.layer_class_to_replicate is DynamicLayer:
        cache.layers.append(DynamicLayer())
    for layer in cache.layers:
        if type(layer) is DynamicLayer:
            GrowingLayer.adopt(layer)
        if type(layer) is not GrowingLayer:
            return []
        if layer.get_seq_length() == 0:
            layer.lazy_initialization(empty, empty)
            layer.keys = layer.values = empty
        tensors += layer.reserve(queries)
        if layer.length != cache.layers[0].length:
            return []
    return tensors


def note_written(cache: Cache, queries: int) -> None:
    """Counts the queries of a forward among the entries."""
    if not isinstance(cache, RowCache):
        for layer in cache.layers:
            layer.length += queries

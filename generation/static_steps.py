"""cache_implementation="static": steps of a few fixed shapes, each of which becomes one CUDA graph."""

from collections.abc import Callable
from functools import cache, partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel, logging

from wedlm.generation.call import Call
from wedlm.generation.model_kind import ModelKind, text_config_of
from wedlm.generation.row_cache import RowCache
from wedlm.generation.sampling import SlotNoise
from wedlm.generation.sequences import Queries, Settings, State
from wedlm.generation.transformers_internals import (
    Waits,
    allow_any_length,
    attention_of,
    fix_length,
    has_hooks_on,
    keep_address,
    num_changes,
)

logger = logging.get_logger(__name__)
Step = Callable[[], Tensor]  # takes a step, and returns its status

# The memory of static steps, which a model keeps from call to call until `free_static_memory(model)`. A call takes it
# away and brings it back when it has succeeded, so that two threads never share it.
KEPT: WeakKeyDictionary[PreTrainedModel, "StaticSteps"] = WeakKeyDictionary()

MOST_GRAPHS = 64  # of a kept memory; where it needs more, it begins anew
CAPTURING = Lock()  # since CUDA captures for one thread at a time


def free_static_memory(model: PreTrainedModel) -> None:
    """Frees what calls with `cache_implementation="static"` keep for the next call: cache, buffers and graphs.

    Args:
        model (`PreTrainedModel` or `PeftModel`): The model.
    """
    KEPT.pop(getattr(model, "get_base_model", lambda: model)(), None)


class StaticSteps:
    """State and cache whose tensors stay where they are, and the steps that calls take in them.

    A step has a power of two of queries for each sequence, of which those that it does not need do nothing, and reads
    a number of entries rounded up by `bucketed`. The first step of such a shape runs as any other. Then a graph of it
    is captured, which takes all later ones.
    """

    def __init__(self, call: Call, state: State, max_entries: int):
        self.surroundings, self.strategy = surroundings(call.model), call.strategy
        self.state = state.map(Tensor.clone)
        self.cache = RowCache(len(call.input_ids), max_entries, call.input_ids.device, is_static=True)
        for buffer in (*self.state.tensors, self.cache.lengths):
            keep_address(buffer)
        self.entries = torch.arange(self.cache.max_entries, device=call.input_ids.device)
        self.noise: Tensor | None = None
        self.graphs, self.forward = Graphs(), CapturedForward()
        self.settings: Settings | None = None  # whose tensors the graphs read
        for buffer in (*self.state.sequences[:2], self.state.kept[0]):  # of any number of columns, or of slots
            allow_any_length(buffer, 1)

    @classmethod
    def of(cls, call: Call, settings: Settings, state: State) -> "StaticSteps":
        """The steps that the model's last call left if this call fits into them, else new ones."""
        steps, asked_for = KEPT.pop(call.model, None), getattr(call.generation_config, "max_cache_len", None) or 0
        max_entries = max(call.max_entries, asked_for + 2 * call.window_size)
        max_entries += power_of_two(2 * call.window_size) - 2 * call.window_size  # for queries that are rounded up
        if steps is None or not steps.fit(call, state, max_entries):
            num_slots, num_columns = state.room
            state = state.with_room(bucketed(num_slots + 1) - 1, bucketed(max(num_columns, asked_for)), settings.blank)
            steps = cls(call, state, bucketed(max_entries))
        steps.cache.lengths.zero_()
        if settings.noise is not None:
            if steps.noise is None or steps.noise.shape != settings.noise.values.shape:
                steps.noise = settings.noise.values
                keep_address(steps.noise)
            settings.noise.values = steps.noise
        return steps

    def fit(self, call: Call, state: State, max_entries: int) -> bool:
        return (
            self.surroundings == surroundings(call.model)
            and self.strategy == call.strategy
            and all(room <= own for room, own in zip(state.room, self.state.room, strict=True))
            and shapes_of(state.with_room(*self.state.room, 0)) == shapes_of(self.state)
            and max_entries <= self.cache.max_entries
        )

    def begin(
        self, call: Call, settings: Settings, state: State, step: Callable, is_compiled: bool
    ) -> tuple[State, Callable[[int, int], Tensor]]:
        """Takes over the state behind the first step of a call; returns its buffers, and what takes the next steps.

        That is a function of the queries that a step needs and of the tokens of the longest sequence, which returns
        the status. A step that is compiled is not captured: it has its own graphs.
        """
        put_into(self.state, state.with_room(*self.state.room, settings.blank))
        for layer in self.cache.layers:
            for states in (layer.keys, layer.values):
                keep_address(states)
                allow_any_length(states, 2)
        most, captures = settings.strategy.most_queries(settings), not is_compiled and may_capture(call.model)
        settings = self.settled(call.model, settings) if captures else settings

        def take(num_queries: int, longest: int) -> Tensor:
            num_queries = most if is_compiled else min(power_of_two(num_queries), most)
            num_entries = min(bucketed(longest + num_queries), self.cache.max_entries)
            query, entry = settings.arange[:num_queries], self.entries[:num_entries]
            if is_compiled:
                fix_length(query, 0)
                allow_any_length(entry, 0)
            take_now = partial(step, call.kind, settings, self.state, self.cache, query, entry)
            return self.graphs.run((num_queries, num_entries), take_now) if captures else take_now()

        return self.state, take

    def settled(self, model: PreTrainedModel, settings: Settings) -> Settings:
        """The settings whose tensors the graphs read, with the values of these; other graphs are dropped."""
        changed = self.graphs.drop_unless(
            (memory_of(self.cache), state_of(model), [built_in_of(value) for value in settings.values])
        )
        if changed or self.settings is None:
            self.settings = settings
        for own, new in zip(self.settings.values, settings.values, strict=True):
            if isinstance(own, Tensor):
                own.copy_(new)
        return self.settings


class CapturedForward:
    """Forward passes by graphs, for steps whose other part asks callbacks, or goes over the rows of a running batch.

    Called as `ModelKind.forward` is. A forward pass over a prompt runs as any other. Of all others the queries are
    copied into buffers, as many as the next power of two, and a graph takes the forward pass over these.
    """

    def __init__(self) -> None:
        self.graphs, self.captures = Graphs(), False
        self.model_state: Any = None
        self.logits: dict[Any, Tensor] = {}  # by shape: graphs that each kept theirs could not share memory

    def __call__(self, kind: ModelKind, queries: Queries, cache: RowCache, valid_length: int) -> Tensor:
        if queries.num_text is not None or not self.captures:
            return kind.forward(queries, cache, valid_length)
        self.graphs.drop_unless((memory_of(cache), self.model_state))
        num_queries, num_predicted = queries.input_ids.shape[1], queries.logits_indices.shape[1]
        longest = valid_length - num_queries
        width = min(power_of_two(num_queries), cache.max_entries - longest)
        num_entries = min(bucketed(longest + width), cache.max_entries)
        given = queries.for_forward(width, width if num_predicted == num_queries else power_of_two(num_predicted))
        values = [cache.lengths, *(each for each in given if each is not None)]
        shape = (num_entries, given.visible_prefix is None, *(each.shape for each in values))

        def take(lengths: Tensor, *values: Tensor) -> Tensor:
            own, cache.lengths, rest = cache.lengths, lengths, iter(values)
            buffers = Queries(*(None if each is None else next(rest) for each in given))
            try:
                logits = kind.forward(buffers, cache, num_entries)
            finally:
                cache.lengths = own
            if (kind_of_logits := (logits.shape, logits.dtype)) not in self.logits:
                self.logits[kind_of_logits] = torch.empty_like(logits)
            return self.logits[kind_of_logits].copy_(logits)

        return self.graphs.run(shape, take, *values)[:, :num_predicted].clone()  # The next one overwrites it.

    def renew(self, model: PreTrainedModel) -> bool:
        """Sees what has changed about the model, by which graphs would be wrong, and says whether anything has."""
        before, self.model_state, self.captures = self.model_state, state_of(model), may_capture(model)
        return before != self.model_state

    def free(self) -> None:
        """Frees the memory of the graphs, and captures none before `renew`."""
        self.graphs, self.logits, self.captures = Graphs(), {}, False


# --- Graphs ---


class Graphs:
    """Functions of tensors that ran once, by shape, and the graphs that take their place."""

    def __init__(self) -> None:
        # with the buffers that a graph reads; None: the function cannot be captured
        self.of_shape: dict[Any, tuple[list[Tensor], Step] | None] = {}
        self.built_in: Any = None  # what the graphs hold, apart from the values of tensors
        self.pool: Any = None  # the memory that they share

    def __len__(self) -> int:
        return sum(found is not None for found in self.of_shape.values())

    def drop_unless(self, built_in: Any) -> bool:
        """Drops graphs that hold anything else, and says whether it has."""
        if built_in == self.built_in:
            return False
        self.built_in, self.of_shape = built_in, {}
        self.pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        return True

    def run(self, shape: Any, take: Callable[..., Tensor], *values: Tensor) -> Tensor:
        """Returns `take(*values)`, by the graph of this shape if there is one."""
        if shape in self.of_shape:
            if (found := self.of_shape[shape]) is None:
                return take(*values)
            buffers, replay = found
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
            return replay()
        if len(self.of_shape) >= MOST_GRAPHS:
            self.of_shape = {}
        buffers = [value.clone() for value in values]
        with Waits() as waits:
            output = take(*buffers)
        try:
            if waits.seen:
                raise RuntimeError(f"it waits for the device ({waits.seen[0]})")
            capture = CAPTURES[output.device.type]
            self.of_shape[shape] = buffers, capture(partial(take, *buffers), output.device, self.pool)
        except torch.OutOfMemoryError:  # There may be enough another time.
            pass
        except RuntimeError as error:
            self.of_shape[shape], reason = None, str(error).partition("\n")[0]
            logger.warning_once(
                f"A step cannot become a CUDA graph: {reason}; it runs as ordinary steps do, so "
                'cache_implementation="static" brings nothing here.'
            )
        return output


def memory_of(cache: RowCache) -> list[tuple[int, ...]]:
    """Where keys and values of a cache lie, whichever rows are in use."""
    tensors = [states for layer in cache.layers for states in (layer.keys, layer.values)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return [(s.data_ptr(), s.nbytes(), *tensor.stride()) for s, tensor in zip(storages, tensors, strict=True)]


def cuda_graph(step: Step, device: torch.device, pool: Any) -> Step:
    """Captures a step, which does not run now, as a CUDA graph; returns the step that the graph takes."""
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    stream = capture_stream(device)
    try:
        with CAPTURING, torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            status = step()
    except RuntimeError:  # torch leaves the stream and the generator as they are in a capture
        torch.cuda.set_stream(current)
        generator = torch.cuda.default_generators[current.device.index]
        generator.graphsafe_set_state(generator.clone_state())
        raise

    def replay() -> Tensor:
        graph.replay()
        return status

    return replay


CAPTURES: dict[str, Callable[[Step, torch.device, Any], Step]] = {"cuda": cuda_graph}  # by the kind of device


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all graphs of a device, because cuBLAS keeps memory for each stream."""
    return torch.cuda.Stream(device)


def may_capture(model: PreTrainedModel) -> bool:
    """Whether graphs can take the steps: a hook would not run, and autocast frees the weights that it has cast."""
    kind = model.device.type
    return kind in CAPTURES and not has_hooks_on(model.modules()) and not torch.is_autocast_enabled(kind)


def state_of(model: PreTrainedModel) -> tuple:
    """Returns what is another after a change of the model that its graphs do not see."""
    weights = [
        # A change in place counts, too: fused layers keep what they made of draft weights. (Quantized weights have no
        # address.)
        (each.data_ptr() if type(each.data) is Tensor else id(each), num_changes(each))
        for each in (*model.parameters(), *model.buffers())
    ]
    adapters = [
        (str(layer.active_adapters), layer.disable_adapters, str(getattr(layer, "scaling", None)))
        for layer in model.modules()
        if hasattr(layer, "active_adapters") and not isinstance(layer, PreTrainedModel)
    ]
    return weights, adapters, model.training, attention_of(text_config_of(model))


def built_in_of(value: Any) -> Any:
    """Returns what a graph holds of a setting: all but the values of a tensor."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, SlotNoise):
        return value.values.data_ptr()
    if isinstance(value, LogitsProcessorList):
        return [(type(each), {name: plain(held) for name, held in vars(each).items()}) for each in value]
    return value


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


# --- Buffers ---


def surroundings(model: PreTrainedModel) -> tuple:
    """Returns what decides the kind of tensors of a call, besides their shapes."""
    is_autocast = torch.is_autocast_enabled(model.device.type) if model.device.type != "meta" else None
    return model.device, model.dtype, is_autocast, torch.is_inference_mode_enabled()


def put_into(buffers: State, state: State) -> None:
    for buffer, value in zip(buffers.tensors, state.tensors, strict=True):
        if value is not buffer:
            buffer.copy_(value)


def shapes_of(state: State) -> list[torch.Size]:
    return [tensor.shape for tensor in state.tensors]


def power_of_two(number: int) -> int:
    """Rounds up to a power of two."""
    return 1 << (number - 1).bit_length()


def bucketed(number: int) -> int:
    """Rounds up to one of four sizes per power of two, at least 64.

    >>> bucketed(40), bucketed(300), bucketed(1100), bucketed(1024), bucketed(9000)
    (64, 320, 1280, 1024, 10240)
    """
    step = max(64, 2 ** (number.bit_length() - 3))
    return -(-number // step) * step

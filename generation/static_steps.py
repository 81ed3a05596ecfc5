"""cache_implementation="static": steps of a few fixed shapes, each of which becomes one CUDA graph."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import LogitsProcessorList, PreTrainedModel, logging

from wedlm.generation.call import Call
from wedlm.generation.row_cache import RowCache
from wedlm.generation.sampling import SlotNoise
from wedlm.generation.transformers_internals import (
    Waits,
    allow_any_length,
    attention_of,
    fix_length,
    has_hooks,
    keep_address,
    num_changes,
)
from wedlm.generation.window import Policy, Window

logger = logging.get_logger(__name__)
Step = Callable[[], torch.Tensor]  # takes a step, and returns its status

# The memory of static steps, which a model keeps from call to call until `model.free_static_memory()`. A call takes it
# away and brings it back when it has succeeded, so that two threads never share it.
KEPT: WeakKeyDictionary[PreTrainedModel, "StaticSteps"] = WeakKeyDictionary()


class StaticSteps:
    """A window and a cache whose tensors stay where they are, and the steps that calls take in them.

    Every step has as many queries for each row as a window may need, of which those behind the window do nothing. It
    reads a number of entries rounded up by `bucketed`. The host reads the status of the step before the one that runs,
    so that the device never waits. So one more step runs when all rows have ended, and changes nothing.

    The first step that reads so many entries runs as any other. Then a graph of it is captured, which takes all later
    ones.
    """

    def __init__(self, model: PreTrainedModel, window: Window, max_entries: int):
        self.surroundings = surroundings(model)
        self.window = replace(window, **{name: value.clone() for name, value in tensors(window)})
        self.cache = RowCache(len(window.start), max_entries, window.start.device, is_static=True)
        for _, buffer in tensors(self.window):
            keep_address(buffer)
        keep_address(self.cache.lengths)
        self.noise: torch.Tensor | None = None
        self.graphs: dict[int, Step] = {}  # by the number of entries that the step reads
        self.built_in: Any = None  # what the graphs hold, apart from the values of tensors
        self.policy: Policy | None = None  # whose tensors the graphs read
        self.pool: Any = None  # the memory that they share
        for name in (*window.PER_SLOT, *window.PER_COLUMN):
            allow_any_length(getattr(self.window, name), 1)

    @classmethod
    def of(cls, call: Call, policy: Policy, window: Window) -> "StaticSteps":
        """The steps that the model's last call left if this call fits into them, else new ones."""
        steps, asked_for = KEPT.pop(call.model, None), getattr(call.generation_config, "max_cache_len", None) or 0
        max_entries = max(call.max_entries, asked_for + 2 * call.window_size)
        if steps is None or not steps.fit(call.model, window, max_entries):
            num_slots, num_columns = bucketed(window.tokens.shape[1]) - 1, bucketed(window.num_columns)
            window = window.with_room(num_slots, num_columns, policy.blank)
            steps = cls(call.model, window, bucketed(max_entries))
        steps.cache.lengths.zero_()
        if policy.noise is not None:
            if steps.noise is None or steps.noise.shape != policy.noise.values.shape:
                steps.noise = policy.noise.values
                keep_address(steps.noise)
            policy.noise.values = steps.noise
        return steps

    def fit(self, model: PreTrainedModel, window: Window, max_entries: int) -> bool:
        shapes, own_shapes = (
            {name: value.shape for name, value in tensors(each) if name not in window.PER_SLOT + window.PER_COLUMN}
            for each in (window, self.window)
        )
        return (
            self.surroundings == surroundings(model)
            and type(window) is type(self.window)
            and shapes == own_shapes
            and window.scratch_slot <= self.window.scratch_slot
            and window.num_columns <= self.window.num_columns
            and max_entries <= self.cache.max_entries
        )

    def take_all(
        self,
        model: PreTrainedModel,
        policy: Policy,
        window: Window,
        status: torch.Tensor,
        step: Callable,
        is_compiled: bool,
    ) -> None:
        """Steps on from `window` and its `status` until all rows have ended. Then `window` shares the buffers.

        A step that is compiled is not captured: it has its own graphs.
        """
        room = (self.window.scratch_slot, self.window.num_columns)
        put_into(self.window, window.with_room(*room, policy.blank))
        for layer in self.cache.layers:
            for states in (layer.keys, layer.values):
                keep_address(states)
                allow_any_length(states, 2)
        num_queries, rows = window.most_queries(policy), range(len(window.start))
        query = torch.arange(num_queries, device=status.device)
        fix_length(query, 0)
        noise, captures = policy.noise, not is_compiled and may_capture(model)
        policy = self.settled(model, policy) if captures else policy
        prompt_lengths, limits = (() if noise is None else x.tolist() for x in (window.prompt_lengths, window.limit))
        seen, under_way = window.read_status(status.tolist()), None
        while any(seen.alive):
            # One step has been taken since, which may have committed all its queries; this one comes behind it.
            length = min(bucketed(max(seen.num_committed) + 2 * num_queries), self.cache.max_entries)
            valid = torch.arange(length, device=status.device)
            allow_any_length(valid, 0)
            if noise is not None:
                new = [n - length for n, length in zip(seen.num_committed, prompt_lengths, strict=True)]
                noise.draw(rows, new, [2 * num_queries] * len(new), limits)
            take = partial(step, model, policy, self.window, self.cache, query, valid)
            report = Report(self.replayed(length, take) if captures else take())
            if under_way is not None:
                seen = window.read_status(under_way.values())
            under_way = report
        done = self.window.with_room(window.scratch_slot, self.window.num_columns, policy.blank)
        for name, value in tensors(done):
            setattr(window, name, value)

    def settled(self, model: PreTrainedModel, policy: Policy) -> Policy:
        """The policy whose tensors the graphs read, with the values of this one; other graphs are dropped."""
        layers = [layer.keys.data_ptr() for layer in self.cache.layers]
        built_in = (layers, state_of(model), [built_in_of(value) for value in policy])
        if self.policy is None or built_in != self.built_in:
            self.built_in, self.policy, self.graphs = built_in, policy, {}
            self.pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None
        for own, new in zip(self.policy, policy, strict=True):
            if isinstance(own, torch.Tensor):
                own.copy_(new)
        return self.policy

    def replayed(self, length: int, take: Step) -> torch.Tensor:
        """Takes a step that reads so many entries, by its graph if there is one."""
        if length in self.graphs:
            return self.graphs[length]()
        with Waits() as waits:
            status = take()
        try:
            if waits.seen:
                raise RuntimeError(f"it waits for the device ({waits.seen[0]})")
            self.graphs[length] = CAPTURES[status.device.type](take, status.device, self.pool)
        except RuntimeError as error:
            self.graphs[length], reason = take, str(error).partition("\n")[0]
            logger.warning_once(
                f"A step cannot become a CUDA graph: {reason}; it runs as ordinary steps do, so "
                'cache_implementation="static" brings nothing here.'
            )
        return status


# --- Graphs ---


def cuda_graph(step: Step, device: torch.device, pool: Any) -> Step:
    """Captures a step, which does not run now, as a CUDA graph; returns the step that the graph takes."""
    graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    stream = capture_stream(device)
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            status = step()
    except RuntimeError:  # torch leaves the stream and the generator as they are in a capture
        torch.cuda.set_stream(current)
        generator = torch.cuda.default_generators[current.device.index]
        generator.graphsafe_set_state(generator.clone_state())
        raise

    def replay() -> torch.Tensor:
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
    return kind in CAPTURES and not has_hooks(model) and not torch.is_autocast_enabled(kind)


def state_of(model: PreTrainedModel) -> tuple:
    """Returns what is another after a change of the model that its graphs do not see."""
    weights = [
        # A change in place counts, too: fused layers keep what they made of draft weights. (Quantized weights have no
        # address.)
        (each.data_ptr() if type(each.data) is torch.Tensor else id(each), num_changes(each))
        for each in (*model.parameters(), *model.buffers())
    ]
    adapters = [
        (str(layer.active_adapters), layer.disable_adapters, str(getattr(layer, "scaling", None)))
        for layer in model.modules()
        if hasattr(layer, "active_adapters") and not isinstance(layer, PreTrainedModel)
    ]
    return weights, adapters, model.training, attention_of(model.config)


def built_in_of(value: Any) -> Any:
    """Returns what a graph holds of a field of a policy: all but the values of a tensor."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, SlotNoise):
        return value.values.data_ptr()
    if isinstance(value, LogitsProcessorList):
        return [(type(each), {name: plain(held) for name, held in vars(each).items()}) for each in value]
    return value


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


# --- Buffers ---


def surroundings(model: PreTrainedModel) -> tuple:
    """Returns what decides the kind of tensors of a call, besides their shapes."""
    is_autocast = torch.is_autocast_enabled(model.device.type) if model.device.type != "meta" else None
    return model.device, model.dtype, is_autocast, torch.is_inference_mode_enabled()


class Report:
    """A tensor of the device that the host reads, at once or later."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor.to("cpu", non_blocking=True, copy=True)  # the next step overwrites it
        self.event = None if tensor.device.type == "cpu" else torch.Event(device=tensor.device)
        if self.event is not None:
            self.event.record(torch.accelerator.current_stream(tensor.device))

    def values(self) -> list[list[int]]:
        if self.event is not None:
            self.event.synchronize()
        return self.tensor.tolist()


def put_into(buffers: Window, window: Window) -> None:
    for name, value in tensors(window):
        getattr(buffers, name).copy_(value)


def tensors(window: Window) -> list[tuple[str, torch.Tensor]]:
    return [(field.name, getattr(window, field.name)) for field in fields(window)]


def bucketed(number: int) -> int:
    """Rounds up to one of four sizes per power of two, at least 64.

    >>> bucketed(40), bucketed(300), bucketed(1100), bucketed(1024), bucketed(9000)
    (64, 320, 1280, 1024, 10240)
    """
    step = max(64, 2 ** (number.bit_length() - 3))
    return -(-number // step) * step

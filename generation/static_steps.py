"""cache_implementation="static": steps of a few fixed shapes, each of which can be compiled into one graph."""

from collections.abc import Callable
from dataclasses import fields, replace
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from wedlm.generation.call import Call
from wedlm.generation.row_cache import RowCache
from wedlm.generation.transformers_internals import allow_any_length, fix_length, keep_address
from wedlm.generation.window import Policy, Window

# The memory of static steps, which a model keeps from call to call until `model.free_static_memory()`. A call takes it
# away and brings it back when it has succeeded, so that two threads never share it.
KEPT: WeakKeyDictionary[PreTrainedModel, "StaticSteps"] = WeakKeyDictionary()


class StaticSteps:
    """A window and a cache whose tensors stay where they are, and the steps that calls take in them.

    Every step has 2 * window_size queries for each row, of which those behind the window do nothing. It reads a
    number of entries rounded up by `bucketed`. The host reads the status of the step before the one that runs, so that
    the device never waits. So one more step runs when all rows have ended, and changes nothing.
    """

    def __init__(self, model: PreTrainedModel, window: Window, max_entries: int):
        self.surroundings = surroundings(model)
        self.window = replace(window, **{name: value.clone() for name, value in tensors(window)})
        self.cache = RowCache(len(window.start), max_entries, window.start.device, is_static=True)
        for _, buffer in tensors(self.window):
            keep_address(buffer)
        keep_address(self.cache.lengths)
        self.noise: torch.Tensor | None = None
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
        self, model: PreTrainedModel, policy: Policy, window: Window, status: torch.Tensor, step: Callable
    ) -> None:
        """Steps on from `window` and its `status` until all rows have ended. Then `window` shares the buffers."""
        room = (self.window.scratch_slot, self.window.num_columns)
        put_into(self.window, window.with_room(*room, policy.blank))
        for layer in self.cache.layers:
            for states in (layer.keys, layer.values):
                keep_address(states)
                allow_any_length(states, 2)
        num_queries, rows = 2 * policy.window_size, range(len(window.start))
        query = torch.arange(num_queries, device=status.device)
        fix_length(query, 0)
        noise = policy.noise
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
            report = Report(step(model, policy, self.window, self.cache, query, valid))
            if under_way is not None:
                seen = window.read_status(under_way.values())
            under_way = report
        done = self.window.with_room(window.scratch_slot, self.window.num_columns, policy.blank)
        for name, value in tensors(done):
            setattr(window, name, value)


def surroundings(model: PreTrainedModel) -> tuple:
    """Returns what decides the kind of tensors of a call, besides their shapes."""
    is_autocast = torch.is_autocast_enabled(model.device.type) if model.device.type != "meta" else None
    return model.device, model.dtype, is_autocast, torch.is_inference_mode_enabled()


class Report:
    """A tensor of the device that the host reads, at once or later."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor.to("cpu", non_blocking=True)
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

"""cache_implementation="static": steps of a few fixed shapes, each of which can be compiled into one graph."""

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from transformers import PreTrainedModel

from .policy import Policy
from .row_cache import RowCache
from .slot_noise import SlotNoise
from .static_memory import take_static_steps
from .step import read_status, take_step
from .transformers_internals import allow_any_length, fix_length, keep_address
from .window import Window


class StaticSteps:
    """A window and a cache whose tensors stay where they are, and the steps that calls take in them.

    Every step has 2 * window_size queries for each row, of which those behind the window do nothing. It reads a
    number of entries rounded up by `bucketed`. The host reads the status of the step before the one that runs, so that
    the device never waits. So one more step runs when all rows have ended, and changes nothing.

    Args:
        model (`PreTrainedModel`): The model.
        window (`Window`): A window with the shapes to come; it is copied.
        max_entries (`int`): The most entries that the cache will hold.
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
    def of(cls, model: PreTrainedModel, policy: Policy, window: Window, max_entries: int) -> "StaticSteps":
        """The steps that the model's last call left if this call fits into them, else new ones."""
        steps = take_static_steps(model)
        if steps is None or not steps.fit(model, window, max_entries):
            num_slots, num_columns = bucketed(window.tokens.shape[1]) - 1, bucketed(window.num_columns)
            window = window.with_room(num_slots, num_columns, policy.mask_token_id)
            steps = cls(model, window, bucketed(max_entries))
        steps.cache.lengths.zero_()
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
            and window.no_slot <= self.window.no_slot
            and window.num_columns <= self.window.num_columns
            and max_entries <= self.cache.max_entries
        )

    def noise_buffer(self, like: torch.Tensor) -> torch.Tensor:
        """The buffer for the noise of sampled text, of the shape of `like`."""
        if self.noise is None or self.noise.shape != like.shape:
            self.noise = like
            keep_address(like)
        return self.noise

    def take_all(
        self,
        model: PreTrainedModel,
        policy: Policy,
        window: Window,
        status: torch.Tensor,
        step: Callable,
        noise: SlotNoise | None,
    ) -> None:
        """Steps on from `window` and its `status` until all rows have ended. Then `window` shares the buffers."""
        room = (self.window.no_slot, self.window.num_columns)
        put_into(self.window, window.with_room(*room, policy.mask_token_id))
        for layer in self.cache.layers:
            for states in (layer.keys, layer.values):
                keep_address(states)
                allow_any_length(states, 2)
        num_queries, rows = 2 * policy.window_size, range(len(window.start))
        query = torch.arange(num_queries, device=status.device)
        fix_length(query, 0)
        prompt_lengths, limits = (() if noise is None else x.tolist() for x in (window.prompt_lengths, window.limit))
        seen, under_way = read_status(status.tolist(), window), None
        while any(seen.alive):
            # One step has been taken since, which may have committed all its queries; this one comes behind it.
            length = min(bucketed(max(seen.num_committed) + 2 * num_queries), self.cache.max_entries)
            live = torch.arange(length, device=status.device)
            allow_any_length(live, 0)
            if noise is not None:
                behind = [each + 2 * num_queries + 1 for each in seen.num_committed]
                ends = [min(e - p, limit) for e, p, limit in zip(behind, prompt_lengths, limits, strict=True)]
                noise.draw(rows, ends)
            look = Look(step(model, policy, self.window, self.cache, query, live))
            if under_way is not None:
                seen = read_status(under_way.values(), window)
            under_way = look
        done = self.window.with_room(window.no_slot, self.window.num_columns, policy.mask_token_id)
        for name, value in tensors(done):
            setattr(window, name, value)


def surroundings(model: PreTrainedModel) -> tuple:
    """Returns what decides the kind of tensors of a call, besides their shapes."""
    is_autocast = torch.is_autocast_enabled(model.device.type) if model.device.type != "meta" else None
    return model.device, model.dtype, is_autocast, torch.is_inference_mode_enabled()


class Look:
    """The host's look at a tensor of the device, at once or later."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor.to("cpu", non_blocking=True)
        self.event = None if tensor.device.type == "cpu" else torch.Event(device=tensor.device)
        if self.event is not None:
            self.event.record(torch.accelerator.current_stream(tensor.device))

    def values(self) -> list[list[int]]:
        if self.event is not None:
            self.event.synchronize()
        return self.tensor.tolist()


def static_step(
    model: PreTrainedModel, policy: Policy, window: Window, cache: RowCache, query: torch.Tensor, live: torch.Tensor
) -> torch.Tensor:
    """Takes a step that leaves the window in its buffers.

    It has as many queries in a row as `query` has elements, and reads as many entries as `live` has.
    """
    moving = replace(window)
    queries = moving.queries(query.shape[0], policy)
    status = take_step(model, policy, moving, queries, cache, live.shape[0])
    put_into(window, moving)
    return status


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

"""cache_implementation="static": steps of one fixed shape, which can be compiled into one graph."""

from collections.abc import Callable
from dataclasses import fields, replace
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from .policy import Policy
from .row_cache import RowCache
from .step import read_status, take_step
from .window import Window


class StaticSteps:
    """A window and a cache whose tensors stay where they are, and the steps that a call takes in them.

    Every step has 2 * window_size rows per batch row, of which those behind the window are MASK and do nothing, and
    reads a `bucketed` number of entries of the cache. The host reads the status of the step before the one that runs,
    so that the device never waits for it. When all rows have ended one more step is under way, which changes nothing.
    """

    def __init__(self, model: PreTrainedModel, window: Window, capacity: int):
        self.where = surroundings(model)
        self.window = replace(window, **{name: value.clone() for name, value in tensors(window)})
        self.cache = RowCache(len(window.start), capacity, window.start.device, is_static=True)
        for _, buffer in tensors(self.window):
            torch._dynamo.mark_static_address(buffer)
        torch._dynamo.mark_static_address(self.cache.lengths)
        for name in window.PER_SLOT:
            torch._dynamo.mark_dynamic(getattr(self.window, name), 1)

    @classmethod
    def of(cls, model: PreTrainedModel, policy: Policy, window: Window, most: int) -> "StaticSteps":
        """Those that the last call has left, if this one has room in them."""
        steps = left.pop(model, None)
        if steps is None or not steps.have_room_for(model, window, most):
            columns = bucketed(window.tokens.shape[1])
            steps = cls(model, window.with_columns(columns, policy.mask_token_id), bucketed(most))
        steps.cache.lengths.zero_()
        return steps

    def have_room_for(self, model: PreTrainedModel, window: Window, most: int) -> bool:
        shapes, own_shapes = (
            {name: value.shape for name, value in tensors(each) if name not in window.PER_SLOT}
            for each in (window, self.window)
        )
        return (
            self.where == surroundings(model)
            and type(window) is type(self.window)
            and shapes == own_shapes
            and window.tokens.shape[1] <= self.window.tokens.shape[1]
            and most <= self.cache.most
        )

    def take_all(self, model: PreTrainedModel, policy: Policy, window: Window, status: torch.Tensor, step: Callable):
        """Takes `window`, which has come to `status`, on until its rows have ended; it shares the buffers then."""
        put_into(self.window, window.with_columns(self.window.tokens.shape[1], policy.mask_token_id))
        for layer in self.cache.layers:
            for states in (layer.keys, layer.values):
                torch._dynamo.mark_static_address(states)
                torch._dynamo.mark_dynamic(states, 2)
        num_rows = 2 * policy.window_size
        seen, under_way = read_status(status.tolist(), window), None
        while any(seen.alive):
            # One step has been taken since, which may have committed all its rows; this one comes behind it.
            length = min(bucketed(max(seen.committed) + 2 * num_rows), self.cache.most)
            live = torch.arange(length, device=status.device)
            torch._dynamo.mark_dynamic(live, 0)
            look = Look(step(model, policy, self.window, self.cache, live))
            if under_way is not None:
                seen = read_status(under_way.values(), window)
            under_way = look
        done = self.window.with_columns(window.tokens.shape[1], policy.mask_token_id)
        for name, value in tensors(done):
            setattr(window, name, value)


def surroundings(model: PreTrainedModel) -> tuple:
    """Whatever else decides what kind of tensors a call makes."""
    is_autocast = torch.is_autocast_enabled(model.device.type) if model.device.type != "meta" else None
    return model.device, model.dtype, is_autocast, torch.is_inference_mode_enabled()


# Of each model what its last call has left; a call takes it away until it is done.
left: WeakKeyDictionary[PreTrainedModel, StaticSteps] = WeakKeyDictionary()


class Look:
    """The host's look at a tensor, at once or later."""

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
    model: PreTrainedModel, policy: Policy, window: Window, cache: RowCache, live: torch.Tensor
) -> torch.Tensor:
    """A step in place; it reads as many entries as `live` has."""
    moving = replace(window)
    rows = moving.reorder(2 * policy.window_size, policy.window_size, policy.mask_token_id)
    status = take_step(model, policy, moving, rows, cache, live.shape[0])
    put_into(window, moving)
    return status


def put_into(buffers: Window, window: Window) -> None:
    for name, value in tensors(window):
        getattr(buffers, name).copy_(value)


def tensors(window: Window) -> list[tuple[str, torch.Tensor]]:
    return [(field.name, getattr(window, field.name)) for field in fields(window)]


def bucketed(number: int) -> int:
    """A number that is not less, and by a quarter more at most, or 64: of them there are four to every power of two.

    >>> bucketed(40), bucketed(300), bucketed(1100), bucketed(1024), bucketed(9000)
    (64, 320, 1280, 1024, 10240)
    """
    step = max(64, 2 ** (number.bit_length() - 3))
    return -(-number // step) * step

"""The outputs of requests on their way from the thread that makes them to whoever waits for them."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from transformers.generation.continuous_batching.requests import GenerationOutput


class RequestOutputs:
    """Outputs wait here in order, unless a handler takes those of a request in its event loop."""

    def __init__(self):
        self.changed = threading.Condition()
        self.waiting: deque[GenerationOutput] = deque()
        self.handlers: dict[str, tuple[Callable, asyncio.AbstractEventLoop]] = {}

    def deliver(self, output: GenerationOutput) -> None:
        with self.changed:
            if not self.hand_over(output):
                self.waiting.append(output)
            self.changed.notify_all()

    def hand_over(self, output: GenerationOutput) -> bool:
        """Hands an output to the handler of its request, if there is one; a closed loop misses nothing."""
        if output.request_id not in self.handlers:
            return False
        callback, loop = self.handlers[output.request_id]
        if output.is_finished():
            del self.handlers[output.request_id]
        try:
            loop.call_soon_threadsafe(callback, output)
        except RuntimeError:  # the loop is closed
            self.handlers.pop(output.request_id, None)
        return True

    def register(self, request_id: str, callback: Callable, loop: asyncio.AbstractEventLoop) -> None:
        """Has a handler called with the outputs of a request, those that wait first."""
        with self.changed:
            self.handlers[request_id] = callback, loop
            mine = [output for output in self.waiting if output.request_id == request_id]
            self.waiting = deque(output for output in self.waiting if output.request_id != request_id)
            for output in mine:
                self.hand_over(output)

    def take(
        self, request_id: str | None, timeout: float | None, can_come: Callable[[], bool]
    ) -> GenerationOutput | None:
        """Takes the next output, or the next one of a request; waits for it as long as it can come."""

        def found() -> GenerationOutput | None:
            return next((each for each in self.waiting if request_id in (None, each.request_id)), None)

        with self.changed:
            self.changed.wait_for(lambda: found() is not None or not can_come(), timeout)
            if (output := found()) is not None:
                self.waiting.remove(output)
            return output

    def wake(self) -> None:
        """Tells those who wait to ask again whether an output can come."""
        with self.changed:
            self.changed.notify_all()

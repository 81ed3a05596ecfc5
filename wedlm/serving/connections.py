"""The connections of the server: as many as it has places for, and none that is idle or stuck keeps one for long."""

import asyncio
import logging
import time

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from wedlm.serving.limits import FILES, HEADER_SECONDS, LOG_SECONDS, SPARE_CONNECTIONS, WRITE_BYTES, WRITE_SECONDS


class Connections(ServerState):
    """The connections that are open.

    Args:
        most (`int`): How many may be open.
    """

    def __init__(self, most: int):
        super().__init__()
        self.most = most
        self.waited_for: dict[Connection, float] = {}  # those without a whole request, since when; the oldest first

    def make_place(self) -> None:
        """Closes the connection that has been waited for longest, if there are too many."""
        if len(self.connections) > self.most and self.waited_for:
            others = list(self.waited_for)[:-1] or self.waited_for  # The last one is new.
            min(others, key=lambda each: each.num_unsent > 0).close()  # rather one without an unsent answer

    def close_late(self) -> None:
        """Closes those that have not begun a request in time, or do not take their answer; a body has its own time."""
        now = time.monotonic()
        for connection in list(self.connections):
            waits = now - self.waited_for.get(connection, now)
            is_late = waits > HEADER_SECONDS and connection.is_idle and not connection.num_unsent
            if is_late or connection.is_stuck(now):
                connection.close()


class Connection(H11Protocol):
    """A connection that can be closed in favour of another one while it has no request."""

    left, left_since = 0, 0.0  # what was to be sent when the client last took some of it, and when that was

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.limit_concurrency = None  # The door refuses what is too much, and lets /health in.
        self.wait_for_request()
        self.server_state.make_place()

    def wait_for_request(self) -> None:
        self.server_state.waited_for.pop(self, None)
        self.server_state.waited_for[self] = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def num_unsent(self) -> int:
        """The bytes of answers that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def is_stuck(self, now: float) -> bool:
        """Whether the client has taken too little of its answer for too long. While more is written, nobody waits."""
        unsent = self.num_unsent if self.flow.write_paused or self.is_idle else 0
        if not unsent or not self.left or self.left - unsent >= WRITE_BYTES:
            self.left, self.left_since = unsent, now
        return now - self.left_since > WRITE_SECONDS

    def resume_writing(self) -> None:
        super().resume_writing()
        self.left = 0

    def handle_events(self) -> None:
        super().handle_events()
        if not self.is_idle and not self.cycle.more_body:
            self.server_state.waited_for.pop(self, None)

    def on_response_complete(self) -> None:
        self.left = 0
        self.wait_for_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.server_state.waited_for.pop(self, None)

    def close(self) -> None:
        self.connections.discard(self)  # at once, since others are counted before the loop tells of the end
        self.server_state.waited_for.pop(self, None)
        self.transport.abort()


def places(wanted: int) -> int:
    """How many connections there can be beside a few spare ones, with the files that the process may open."""
    try:
        import resource
    except ImportError:  # on Windows
        return wanted
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if most == resource.RLIM_INFINITY else max(1, min(wanted, most - FILES - SPARE_CONNECTIONS))


class Seldom(logging.Filter):
    """Lets a record through only if none with the same first line and error came shortly before."""

    def __init__(self):
        super().__init__()
        self.last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        said, now = (record.getMessage().partition("\n")[0], repr(error)), time.monotonic()
        is_new = now - self.last.get(said, -LOG_SECONDS) >= LOG_SECONDS
        if is_new:
            self.last = {each: when for each, when in self.last.items() if now - when < LOG_SECONDS} | {said: now}
        return is_new

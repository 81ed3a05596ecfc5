"""Connections of uvicorn with limits: their number, and how long a client may be idle or not read."""

import asyncio
import logging
import time

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

SPARE_CONNECTIONS = 16  # beside all others, for /health
HEADER_SECONDS = 10  # until a connection has brought the header of a request
WRITE_SECONDS = 60  # in which a client has to read WRITE_BYTES of an answer that waits for it
WRITE_BYTES = 2**14  # 273 bytes a second; every modem is faster
BACKLOG = 128  # connections accepted at once, before others are closed for them
FILES = 64 + BACKLOG  # that the process opens besides its connections
LOG_SECONDS = 10  # between two lines that say the same


class Connections(ServerState):
    """The open connections, at most `max_connections`."""

    def __init__(self, max_connections: int):
        super().__init__()
        self.max_connections = max_connections
        self.idle_since: dict[Connection, float] = {}  # those without a whole request; the oldest first

    def close_oldest_idle(self) -> None:
        """Closes a connection if there are too many: the one that is idle longest, rather without an unsent answer.

        A new one stays where no other is idle: the middleware refuses its request, or answers if it is for /health.
        """
        others = list(self.idle_since)[:-1]  # The last one is new.
        if len(self.connections) > self.max_connections and others:
            min(others, key=lambda each: each.num_unsent > 0).close()

    def close_late(self) -> None:
        """Closes those that have not begun a request in time or do not read; the middleware limits a body's time."""
        now = time.monotonic()
        for connection in list(self.connections):
            idle_seconds = now - self.idle_since.get(connection, now)
            is_late = idle_seconds > HEADER_SECONDS and connection.is_idle and not connection.num_unsent
            if is_late or connection.is_stuck(now):
                connection.close()


class Connection(H11Protocol):
    """A connection that can be closed in favour of another one while it has no request."""

    # The unsent bytes when the client last read some of them, and when that was.
    last_unsent, last_read = 0, 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.limit_concurrency = None  # The middleware refuses what is too much, and lets /health in.
        self.mark_idle()
        self.server_state.close_oldest_idle()

    def mark_idle(self) -> None:
        self.server_state.idle_since.pop(self, None)
        self.server_state.idle_since[self] = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def num_unsent(self) -> int:
        """The bytes of answers that the client has not read."""
        return self.transport.get_write_buffer_size()

    def is_stuck(self, now: float) -> bool:
        """Whether the client has read too little of its answer for too long. While more is written, nobody waits."""
        unsent = self.num_unsent if self.flow.write_paused or self.is_idle else 0
        if not unsent or not self.last_unsent or self.last_unsent - unsent >= WRITE_BYTES:
            self.last_unsent, self.last_read = unsent, now
        return now - self.last_read > WRITE_SECONDS

    def resume_writing(self) -> None:
        super().resume_writing()
        self.last_unsent = 0

    def handle_events(self) -> None:
        super().handle_events()
        if not self.is_idle and not self.cycle.more_body:
            self.server_state.idle_since.pop(self, None)

    def on_response_complete(self) -> None:
        self.last_unsent = 0
        self.mark_idle()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.server_state.idle_since.pop(self, None)

    def close(self) -> None:
        self.connections.discard(self)  # at once, since others are counted before the loop tells of the end
        self.server_state.idle_since.pop(self, None)
        self.transport.abort()


def available_connections(wanted: int) -> int:
    """How many connections there can be beside the spare ones, with the files that the process may open."""
    try:
        import resource
    except ImportError:  # on Windows
        return wanted
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if most == resource.RLIM_INFINITY else max(1, min(wanted, most - FILES - SPARE_CONNECTIONS))


class RepeatFilter(logging.Filter):
    """Drops a record if one with the same first line and error came shortly before."""

    def __init__(self):
        super().__init__()
        self.last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        key, now = (record.getMessage().partition("\n")[0], repr(error)), time.monotonic()
        is_new = now - self.last.get(key, -LOG_SECONDS) >= LOG_SECONDS
        if is_new:
            self.last = {each: when for each, when in self.last.items() if now - when < LOG_SECONDS} | {key: now}
        return is_new

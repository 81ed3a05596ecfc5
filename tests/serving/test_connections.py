"""Connections without requests, or without readers: they hold no place that another one needs, and none for long."""

import asyncio
import http.client
import json
import logging
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import SimpleNamespace

import pytest
import uvicorn
from serving_client import greet, idle_manager, send

from wedlm.serving import access, connections
from wedlm.serving.access import BODY_BYTES, AccessMiddleware
from wedlm.serving.connections import (
    FILES,
    LOG_SECONDS,
    SPARE_CONNECTIONS,
    Connection,
    RepeatFilter,
    available_connections,
)
from wedlm.serving.server import Server, listen
from wedlm.serving.server_metrics import Metrics

PLACES, SPARE = 6, 4
HALVES = {
    "nothing": b"",
    "half a header": b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc",
    "half a body": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
    "an answered request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@contextmanager
def serving(app, monkeypatch, header_seconds=60, api_key=None):
    """The port of a server of an app, which takes six requests at a time."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", header_seconds)
    middleware = AccessMiddleware(app, Metrics(idle_manager()), False, api_key, max_requests=PLACES)
    config = uvicorn.Config(
        middleware, http=Connection, ws="none", lifespan="off", limit_concurrency=PLACES + SPARE, timeout_keep_alive=60
    )
    engine = SimpleNamespace(fatal_error=None, stop=lambda: None)
    server = Server(config, engine)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield port
    finally:
        server.should_exit = server.force_exit = True
        thread.join(60)


def is_closed(connection):
    connection.settimeout(30)
    with suppress(ConnectionResetError):
        while connection.recv(1000):
            pass
    return True


@pytest.mark.parametrize("half", HALVES)
def test_idle_connections_lock_nobody_out(monkeypatch, half):
    with serving(greet, monkeypatch) as port, ExitStack() as stack:
        opened = []
        for _ in range(4 * (PLACES + SPARE)):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            opened[-1].sendall(HALVES[half])
            if half == "an answered request":
                assert opened[-1].recv(1)  # until then it is not idle
        for path in ("/health", "/v1/models"):
            assert send(port, "GET", path) == (200, "welcome")
        assert is_closed(opened[0])  # the longest idle one
        opened[-1].settimeout(0.2)
        with suppress(TimeoutError):
            assert opened[-1].recv(1)  # The newest one is open, with an answer or without.


def test_where_no_connection_is_idle_a_new_one_stays(monkeypatch):
    """Its request is refused, or answered if it is for /health."""
    held, released = [], threading.Event()

    async def hold(scope, receive, send):
        held.append(scope["path"])
        while not released.is_set():
            await asyncio.sleep(0.01)
        await greet(scope, receive, send)

    with serving(hold, monkeypatch) as port, ExitStack() as stack:
        connect = partial(socket.create_connection, ("127.0.0.1", port), timeout=30)
        for number, path in enumerate(["/v1/models"] * PLACES + ["/health"] * (SPARE + 1), start=1):
            connection = stack.enter_context(connect())
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            while len(held) < number:
                time.sleep(0.01)
        assert send(port, "GET", "/v1/models")[0] == 503
        released.set()
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("half", ["nothing", "half a header", "an answered request"])
def test_a_header_has_its_time(monkeypatch, half):
    with serving(greet, monkeypatch, header_seconds=0.3) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            begin = time.monotonic()
            connection.sendall(HALVES[half])
            assert is_closed(connection) and time.monotonic() - begin < 10


@contextmanager
def posting(port, length, first=b""):
    """A connection on which a body of this length has begun, in a request that is the connection's last one."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        header = f"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}"
        connection.sendall(header.encode() + b"\r\n\r\n" + first)
        yield connection


@pytest.mark.parametrize(
    "length, api_key, status", [(2 * BODY_BYTES, None, 413), (BODY_BYTES, "key", 401), (BODY_BYTES, None, 408)]
)
def test_a_client_that_is_refused_while_it_sends_gets_its_answer(monkeypatch, length, api_key, status):
    """It sends all of its body, as most clients do, and then reads."""
    monkeypatch.setattr(access, "BODY_SECONDS", 0.2)
    with serving(greet, monkeypatch, api_key=api_key) as port, posting(port, length, b" " * 2**16) as connection:
        time.sleep(0.5)
        for _ in range(2**16, length, 2**16):
            connection.sendall(b" " * 2**16)
            time.sleep(0.001)
        with connection.makefile("rb") as answer:
            assert answer.readline().split()[1] == str(status).encode()
            assert json.loads(answer.read().partition(b"\r\n\r\n")[2])["error"]["code"] == status


def test_who_sends_on_after_a_refusal_is_cut_off(monkeypatch):
    monkeypatch.setattr(access, "DROPPED_SECONDS", 0.3)
    with serving(greet, monkeypatch) as port, posting(port, 10**12) as connection:
        begin = time.monotonic()
        assert is_closed(connection) and time.monotonic() - begin < 10
    monkeypatch.setattr(access, "DROPPED_SECONDS", 600)
    monkeypatch.setattr(access, "DROPPED_BYTES", 2**20)
    with serving(greet, monkeypatch) as port, posting(port, 10**12) as connection:
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                connection.sendall(b" " * 2**18)


@contextmanager
def asking(port, path, num_received=4096):
    """A connection on which something was asked for, and that receives so many bytes before they are read."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, num_received)
        connection.connect(("127.0.0.1", port))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield connection


class Sending:
    """An app that sends an answer in parts."""

    def __init__(self, num_parts, part):
        self.num_parts, self.part = num_parts, part
        self.cancelled = threading.Event()

    async def __call__(self, scope, receive, send):
        if scope["path"] == "/health":
            return await greet(scope, receive, send)
        await receive()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for further in reversed(range(self.num_parts)):
                await send({"type": "http.response.body", "body": self.part, "more_body": further > 0})
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def read_slowly(connection, now):
    """What comes, up to the end of the last chunk; only reading takes time."""
    received = b""
    while not received.endswith(b"\r\n0\r\n\r\n") and (part := connection.recv(4096)):
        received += part
        now[0] += 0.005
        time.sleep(0.005)
    return received


ANSWERS = {"in events": (100_000, 100), "at once": (1, 10_000_000)}


@pytest.mark.parametrize("num_parts, length", ANSWERS.values(), ids=ANSWERS)
def test_a_client_that_does_not_read_is_cut_off(monkeypatch, num_parts, length):
    lost, connection_lost = threading.Event(), Connection.connection_lost

    def noted(self, exc):
        connection_lost(self, exc)
        lost.set()

    monkeypatch.setattr(Connection, "connection_lost", noted)
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.5)
    app = Sending(num_parts, b"x" * length)
    with serving(app, monkeypatch) as port, asking(port, "/v1/models") as connection:
        assert lost.wait(20)
        assert num_parts == 1 or app.cancelled.wait(20)  # One part is written before anybody reads it.
        assert send(port, "GET", "/health") == (200, "welcome")
        with suppress(ConnectionResetError):
            assert len(read_slowly(connection, [0])) < 2**20


@pytest.mark.parametrize("num_parts, length", [(2_000, 100), (1, 1_000_000)], ids=ANSWERS)
def test_a_client_that_reads_slowly_gets_all(monkeypatch, num_parts, length):
    """Neither the time of writing nor that of the next header ends its answer."""
    now, app = [0.0], Sending(num_parts, b"x" * length)
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(connections, "WRITE_SECONDS", 1)
    with serving(app, monkeypatch, header_seconds=0.5) as port, asking(port, "/v1/models", 2**17) as connection:
        assert read_slowly(connection, now).count(b"x") == num_parts * length


def test_a_connection_takes_one_request_after_another(monkeypatch):
    with serving(greet, monkeypatch) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for _ in range(3):
            connection.request("GET", "/v1/models")
            assert connection.getresponse().read() == b"welcome"
        connection.close()


def test_a_request_that_takes_long_is_no_idle_one(monkeypatch):
    async def slow(scope, receive, send):
        await asyncio.sleep(1)
        await greet(scope, receive, send)

    with serving(slow, monkeypatch, header_seconds=0.2) as port:
        assert send(port, "GET", "/v1/models") == (200, "welcome")


def test_who_takes_an_answer_makes_place_for_nobody_while_others_are_idle(monkeypatch):
    app = Sending(1, b"x" * 1_000_000)
    with serving(app, monkeypatch) as port, asking(port, "/v1/models", 2**17) as connection, ExitStack() as stack:
        received = connection.recv(1000)
        for _ in range(4 * (PLACES + SPARE)):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert send(port, "GET", "/health") == (200, "welcome")
        assert (received + read_slowly(connection, [0])).count(b"x") == 1_000_000


def test_health_has_a_place_beside_requests(monkeypatch):
    running = threading.Semaphore(0)

    async def hanging(scope, receive, send):
        if scope["path"] != "/health":
            running.release()
            await asyncio.Future()
        await greet(scope, receive, send)

    with serving(hanging, monkeypatch) as port, ExitStack() as stack:
        for _ in range(PLACES):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert running.acquire(timeout=10)
        for _ in range(10):
            status, answer = send(port, "GET", "/v1/models")
            assert status == 503 and "send this one again later" in answer
            assert send(port, "GET", "/health") == (200, "welcome")


def test_places_are_those_that_the_files_of_the_process_leave(monkeypatch):
    few = 300 - FILES - SPARE_CONNECTIONS
    for most, expected in ((1024, 576), (300, few), (10, 1), (resource.RLIM_INFINITY, 576)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, most=most: (most, most))
        assert available_connections(576) == expected


def test_what_is_repeated_is_logged_seldom(monkeypatch):
    now, repeats = [1000.0], RepeatFilter()
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def is_logged(message, error=None):
        return repeats.filter(logging.makeLogRecord({"msg": message, "exc_info": error and (None, error, None)}))

    first = "socket.accept() out of system resource\nsocket: 7", OSError(24, "Too many open files")
    assert [is_logged(*first) for _ in range(3)] == [True, False, False]
    assert is_logged("another one") and is_logged(first[0], OSError(1, "another error"))
    now[0] += LOG_SECONDS
    assert is_logged(*first)

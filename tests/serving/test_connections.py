"""Connections without requests: they hold no place that another one needs, and no place for long."""

import asyncio
import logging
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest
import uvicorn
from serving_client import send

from wedlm.generation.running_batch import BatchCounts
from wedlm.serving import connections
from wedlm.serving.connections import Connection, Seldom, places
from wedlm.serving.limits import FILES, LOG_SECONDS, SPARE_CONNECTIONS
from wedlm.serving.metrics import Load, Metrics
from wedlm.serving.server import Server, take_port
from wedlm.serving.transport import Door

PLACES, SPARE = 6, 4
HALVES = {
    "nothing": b"",
    "half a header": b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc",
    "half a body": b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
    "an answered request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@contextmanager
def serving(app, monkeypatch, header_seconds=60):
    """The port of a server of an app behind the door, with six places."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", header_seconds)
    door = Door(app, Metrics(lambda: Load(BatchCounts(), 0, 0, 0, 0)), False, most=PLACES)
    config = uvicorn.Config(
        door, http=Connection, ws="none", lifespan="off", limit_concurrency=PLACES + SPARE, timeout_keep_alive=60
    )
    engine = SimpleNamespace(is_dead=False, stop=lambda: None)
    server = Server(config, SimpleNamespace(grammars=SimpleNamespace(close=lambda: None)), engine)
    listening = take_port("127.0.0.1", 0)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield port
    finally:
        server.should_exit = server.force_exit = True
        thread.join(60)


async def greet(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"welcome"})


def is_closed(connection):
    connection.settimeout(30)
    try:
        while connection.recv(1000):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("half", HALVES)
def test_idle_connections_lock_nobody_out(monkeypatch, half):
    with serving(greet, monkeypatch) as port, ExitStack() as stack:
        opened = []
        for _ in range(4 * (PLACES + SPARE)):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            opened[-1].sendall(HALVES[half])
        for path in ("/health", "/v1/models"):
            assert send(port, "GET", path) == (200, "welcome")
        assert is_closed(opened[0])  # the longest idle one
        opened[-1].settimeout(0.2)
        try:
            assert opened[-1].recv(1)  # The newest one is open, with an answer or without.
        except TimeoutError:
            pass


@pytest.mark.parametrize("half", ["nothing", "half a header", "an answered request"])
def test_a_header_has_its_time(monkeypatch, half):
    with serving(greet, monkeypatch, header_seconds=0.3) as port:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            begin = time.monotonic()
            connection.sendall(HALVES[half])
            assert is_closed(connection) and time.monotonic() - begin < 10


def test_a_request_that_takes_long_is_no_idle_one(monkeypatch):
    async def slow(scope, receive, send):
        await asyncio.sleep(1)
        await greet(scope, receive, send)

    with serving(slow, monkeypatch, header_seconds=0.2) as port:
        assert send(port, "GET", "/v1/models") == (200, "welcome")


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
    for most, expected in (
        (1024, 576),
        (300, 300 - FILES - SPARE_CONNECTIONS),
        (10, 1),
        (resource.RLIM_INFINITY, 576),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, most=most: (most, most))
        assert places(576) == expected


def test_what_is_repeated_is_logged_seldom(monkeypatch):
    now, lines = [1000.0], []
    handler = logging.Handler()
    handler.emit = lines.append
    logger = logging.Logger("x")
    logger.addHandler(handler)
    logger.addFilter(Seldom())
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for _ in range(1000):
        logger.error("socket.accept() out of system resource\nsocket: 7", exc_info=OSError(24, "Too many open files"))
    logger.error("another one")
    assert len(lines) == 2
    now[0] += LOG_SECONDS
    logger.error("socket.accept() out of system resource\nsocket: 7", exc_info=OSError(24, "Too many open files"))
    assert len(lines) == 3

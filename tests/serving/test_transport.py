"""The door of the server: foreign names, bodies beyond the limit, and clients that leave."""

import asyncio
import json
import socket

import pytest
from fastapi import HTTPException
from serving_client import MESSAGES, post
from starlette.datastructures import Headers

from wedlm.serving import transport
from wedlm.serving.limits import BODY_BYTES
from wedlm.serving.transport import Door, is_this_machine
from wedlm.serving.worker import client_has_left

PATH, BODY = "/v1/chat/completions", json.dumps({"messages": MESSAGES, "max_tokens": 3})


def answer_to(server, headers, body=BODY, path=PATH, **arguments):
    """The status and the sentence of the answer, which is None where nothing is refused."""
    status, answer = post(server, path, body, headers, **arguments)
    return status, json.loads(answer).get("error", {}).get("message")


@pytest.mark.parametrize("header", ["Host", "Origin"])
def test_a_foreign_name_is_refused(server, header):
    prefix = "http://" if header == "Origin" else ""
    for name in ("127.0.0.1", "localhost", "LOCALHOST:8000", "127.1.2.3:80", "[::1]:8000"):
        assert answer_to(server, {header: prefix + name}) == (200, None), name
    for name in ("evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example", "192.168.0.1", "[::1"):
        status, sentence = answer_to(server, {header: prefix + name})
        assert status == 403 and sentence.startswith(f"{header} '{prefix}{name}' is not this machine"), name
    assert answer_to(server, {"Origin": "null"})[0] == 403  # of a page in a sandbox or in a file


def test_names_of_this_machine():
    assert is_this_machine("::1") and is_this_machine("127.0.0.1") and is_this_machine("localhost")
    assert not any(map(is_this_machine, ("0.0.0.0", "::", "example", "", None)))


def through_the_door(app, messages, headers=(), this_machine_only=False):
    """The messages that the door sends, with `app` behind it."""
    sent = []

    async def receive():
        return messages.pop(0) if messages else await asyncio.Future()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers]}
    asyncio.run(asyncio.wait_for(Door(app, this_machine_only)(scope, receive, send), 60))
    return sent


def test_other_machines_may_come_where_the_server_is_open():
    async def app(scope, receive, send):
        await send(await receive())

    chunks = [{"type": "http.request", "body": body, "more_body": body == b"a"} for body in (b"a", b"b")]
    for this_machine_only, body in ((False, b"ab"), (True, None)):
        sent = through_the_door(app, list(chunks), [("host", "other.example")], this_machine_only)
        assert sent[0].get("body") == body and sent[0].get("status") == (403 if this_machine_only else None)


def test_a_body_beyond_the_limit_is_refused(server):
    inside = json.dumps({"messages": MESSAGES, "max_tokens": 3}).encode().ljust(BODY_BYTES)
    for body in (inside, inside + b" "):
        expected = (
            (200, None)
            if body is inside
            else (413, f"The body of the request is larger than {BODY_BYTES} bytes; shorten it.")
        )
        assert answer_to(server, {}, body) == expected
        chunks = (body[start : start + 2**16] for start in range(0, len(body), 2**16))
        assert answer_to(server, {}, chunks, encode_chunked=True) == expected  # without a Content-Length
    assert answer_to(server, {}, inside + b" ", "/load_model") == expected
    with socket.create_connection(("127.0.0.1", server)) as connection:  # a length is refused before it comes
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**12}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_body_that_does_not_come_is_refused(monkeypatch):
    monkeypatch.setattr(transport, "BODY_SECONDS", 0.01)
    sent = through_the_door(None, [{"type": "http.request", "body": b"{", "more_body": True}])
    assert sent[0]["status"] == 408


def test_a_client_that_leaves_ends_its_request():
    has_left, steps = [], []

    async def app(scope, receive, send):
        await receive()
        has_left.append(client_has_left.get())
        steps.append(has_left[0].is_set())
        try:
            await asyncio.Future()
        finally:
            steps.append("ended")

    whole = {"type": "http.request", "body": b"{}"}
    assert through_the_door(app, [whole, {"type": "http.disconnect"}]) == []
    assert steps == [False, "ended"] and has_left[0].is_set()
    assert through_the_door(app, [{"type": "http.disconnect"}]) == [] and len(has_left) == 1


def test_a_length_that_is_no_number_is_left_to_the_body():
    async def receive():
        return {"type": "http.request", "body": b"{}"}

    assert asyncio.run(transport.body_of(Headers({"content-length": "many"}), receive)) == b"{}"
    with pytest.raises(HTTPException):
        asyncio.run(transport.body_of(Headers({"content-length": str(BODY_BYTES + 1)}), receive))

"""Who has access, how large a body may be, and clients that leave."""

import asyncio
import json
import socket

import pytest
from fastapi import HTTPException
from prometheus_client import generate_latest
from serving_client import MESSAGES, idle_manager, post
from starlette.datastructures import Headers

from wedlm.serving import access
from wedlm.serving.access import BODY_BYTES, AccessMiddleware, is_this_machine
from wedlm.serving.server_metrics import CANCELLED, OK, REFUSED, Metrics

PATH, BODY = "/v1/chat/completions", json.dumps({"messages": MESSAGES, "max_tokens": 3})


def answer_to(server, headers, body=BODY, path=PATH, **arguments):
    """The status and the sentence of the answer, which is None where nothing is refused."""
    status, answer = post(server, path, body, headers, **arguments)
    return status, json.loads(answer).get("error", {}).get("message")


@pytest.mark.parametrize("header", ["Host", "Origin"])
def test_a_foreign_name_is_refused(server, header):
    prefix = "http://" if header == "Origin" else ""
    for name in ("127.0.0.1", "localhost", "LOCALHOST:8000", "127.1.2.3:80", "[::1]:8000", "host.docker.internal:80"):
        assert answer_to(server, {header: prefix + name}) == (200, None), name
    for name in ("evil.example", "evillocalhost", "localhost.evil.example:8000", "127.0.0.1.evil.example", "[::1"):
        status, sentence = answer_to(server, {header: prefix + name})
        assert status == 403 and sentence.startswith(f"{header} '{prefix}{name}' is not this machine"), name
    assert answer_to(server, {"Origin": "null"})[0] == 403  # of a page in a sandbox or in a file


def test_names_of_this_machine():
    assert all(map(is_this_machine, ("::1", "127.0.0.1", "localhost", "a.localhost", "host.docker.internal")))
    assert not any(map(is_this_machine, ("0.0.0.0", "::", "example", "", None)))


def through(app, messages, headers=(), this_machine_only=False, path=PATH, **arguments):
    """The messages that the middleware sends, with `app` behind it."""
    sent, metrics = [], Metrics(idle_manager())

    async def receive():
        return messages.pop(0) if messages else await asyncio.Future()

    async def send(message):
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    middleware = AccessMiddleware(app, metrics, this_machine_only, **arguments)
    asyncio.run(asyncio.wait_for(middleware(scope, receive, send), 60))
    text = generate_latest(metrics.registry).decode()
    through.outcomes = [
        outcome for outcome in (OK, REFUSED, CANCELLED)
        if f'wedlm_requests_total{{outcome="{outcome}",route="{PATH}"}} 1.0' in text
    ]  # fmt: skip
    return sent


def test_other_machines_may_come_where_the_server_is_open():
    async def app(scope, receive, send):
        await send(await receive())

    chunks = [{"type": "http.request", "body": body, "more_body": body == b"a"} for body in (b"a", b"b")]
    for this_machine_only, body in ((False, b"ab"), (True, None)):
        sent = through(app, list(chunks), [("host", "other.example")], this_machine_only)
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
    assert answer_to(server, {}, inside + b" ", "/v1/completions") == expected
    with socket.create_connection(("127.0.0.1", server)) as connection:  # a length is refused before it comes
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**12}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_body_that_does_not_come_is_refused(monkeypatch):
    monkeypatch.setattr(access, "BODY_SECONDS", 0.01)
    sent = through(None, [{"type": "http.request", "body": b"{", "more_body": True}])
    assert sent[0]["status"] == 408


def test_a_client_that_leaves_ends_its_request():
    steps = []

    async def app(scope, receive, send):
        steps.append((await receive())["body"])
        try:
            await asyncio.Future()
        finally:
            steps.append("ended")

    whole = {"type": "http.request", "body": b"{}"}
    assert through(app, [whole, {"type": "http.disconnect"}]) == []
    assert steps == [b"{}", "ended"] and through.outcomes == [CANCELLED]
    assert through(app, [{"type": "http.disconnect"}]) == [] and len(steps) == 2
    assert through.outcomes == [CANCELLED]


async def greet(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"welcome"})


WHOLE = {"type": "http.request", "body": b"{}"}


def test_a_key_gives_access():
    for given, status in (
        ("Bearer key", 200), ("bearer key", 200), ("BEARER  key", 200), ("Bearer kez", 401), ("key", 401),
        ("Basic key", 401), ("Bearer", 401), ("Bearer k\xe9y", 401), (None, 401),
    ):  # fmt: skip
        headers = [("authorization", given)] if given else []
        start, *_ = through(greet, [WHOLE], headers, api_key="key")
        assert start["status"] == status, given
        assert through.outcomes == [OK if status == 200 else REFUSED]
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    assert through(greet, [WHOLE], path="/health", api_key="key")[0]["status"] == 200


def test_a_proxy_may_send_its_own_host_with_a_key():
    headers = [("host", "models.example"), ("authorization", "Bearer key")]
    assert through(greet, [WHOLE], headers, True, api_key="key")[0]["status"] == 200
    headers.append(("origin", "http://evil.example"))
    assert through(greet, [WHOLE], headers, True, api_key="key")[0]["status"] == 403


def test_origins_that_were_named_may_come():
    for origins, origin, status in (
        (("http://my.example",), "http://my.example", 200),
        (("http://my.example",), "http://my.example.evil", 403),
        (("*",), "http://any.example", 200),
        ((), "http://my.example", 403),
        ((), "http://localhost:3000", 200),
    ):
        headers = [("host", "localhost"), ("origin", origin)]
        assert through(greet, [WHOLE], headers, True, origins=origins)[0]["status"] == status, origin


def test_a_length_that_is_no_number_is_left_to_the_body():
    async def receive():
        return {"type": "http.request", "body": b"{}"}

    assert asyncio.run(access.read_body(Headers({"content-length": "many"}), receive)) == b"{}"
    with pytest.raises(HTTPException):
        asyncio.run(access.read_body(Headers({"content-length": str(BODY_BYTES + 1)}), receive))

"""Who has access, how large a body may be, and clients that leave."""

import asyncio
import json
import socket

import pytest
from prometheus_client import generate_latest
from serving_client import MESSAGES, greet, idle_manager, post

from wedlm.serving import access
from wedlm.serving.access import BODY_BYTES, AccessMiddleware
from wedlm.serving.server_metrics import CANCELLED, OK, REFUSED, Metrics

PATH, BODY = "/v1/chat/completions", json.dumps({"messages": MESSAGES, "max_tokens": 3}).encode()
WHOLE = {"type": "http.request", "body": b"{}"}


def answer_to(server, body=BODY, headers=None, **arguments):
    """The status and the sentence of the answer, which is None where nothing is refused."""
    status, answer = post(server, PATH, body, headers, **arguments)
    return status, json.loads(answer).get("error", {}).get("message")


def through(app, messages=(WHOLE,), headers=(), this_machine_only=False, path=PATH, **arguments):
    """The messages that the middleware sends, with `app` behind it, and the outcomes that were counted."""
    sent, messages, metrics = [], list(messages), Metrics(idle_manager())

    async def receive():
        return messages.pop(0) if messages else await asyncio.Future()

    async def send(message):
        sent.append(message)

    headers = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    middleware = AccessMiddleware(app, metrics, this_machine_only, **arguments)
    asyncio.run(asyncio.wait_for(middleware(scope, receive, send), 60))
    text = generate_latest(metrics.registry).decode()
    counter = 'wedlm_requests_total{{outcome="{}",route="' + PATH + '"}} 1.0'
    return sent, [outcome for outcome in (OK, REFUSED, CANCELLED) if counter.format(outcome) in text]


def status_of(headers, *arguments, **named):
    sent, _ = through(greet, (WHOLE,), headers, *arguments, **named)
    return sent[0]["status"]


@pytest.mark.parametrize("header", ["Host", "Origin"])
def test_a_foreign_name_is_refused(server, header):
    prefix = "http://" if header == "Origin" else ""
    for name in (
        "127.0.0.1",
        "LOCALHOST:8000",
        "127.1.2.3:80",
        "[::1]:8000",
        "a.localhost",
        "host.docker.internal:80",
    ):
        assert answer_to(server, headers={header: prefix + name}) == (200, None), name
    for name in ("evil.example", "evillocalhost", "localhost.evil.example:8000", "127.0.0.1.evil.example", "[::1"):
        status, sentence = answer_to(server, headers={header: prefix + name})
        assert status == 403 and sentence.startswith(f"{header} '{prefix}{name}' is not this machine"), name
    assert answer_to(server, headers={"Origin": "null"})[0] == 403  # of a page in a sandbox or in a file
    assert status_of([("host", "other.example")]) == 200  # where other machines may come in


def test_a_body_beyond_the_limit_is_refused(server):
    inside, sentence = (
        BODY.ljust(BODY_BYTES),
        f"The body of the request is larger than {BODY_BYTES} bytes; shorten it.",
    )
    for body, expected in ((inside, (200, None)), (inside + b" ", (413, sentence))):
        assert answer_to(server, body) == expected
        chunks = (body[start : start + 2**16] for start in range(0, len(body), 2**16))
        assert answer_to(server, chunks, encode_chunked=True) == expected  # without a Content-Length
    with socket.create_connection(("127.0.0.1", server)) as connection:  # a length is refused before it comes
        connection.sendall(f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**12}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_body_that_does_not_come_is_refused(monkeypatch):
    monkeypatch.setattr(access, "BODY_SECONDS", 0.01)
    monkeypatch.setattr(access, "DROPPED_SECONDS", 0.01)
    sent, _ = through(None, [{"type": "http.request", "body": b"{", "more_body": True}])
    assert sent[0]["status"] == 408


def test_a_client_that_leaves_ends_its_request():
    steps = []

    async def app(scope, receive, send):
        steps.append((await receive())["body"])
        try:
            await asyncio.Future()
        finally:
            steps.append("ended")

    assert through(app, [WHOLE, {"type": "http.disconnect"}]) == ([], [CANCELLED])
    assert steps == [b"{}", "ended"]
    assert through(app, [{"type": "http.disconnect"}]) == ([], [CANCELLED]) and len(steps) == 2


def test_a_key_gives_access():
    for given, status in (
        ("Bearer key", 200), ("bearer key", 200), ("BEARER  key", 200), ("Bearer kez", 401), ("key", 401),
        ("Basic key", 401), ("Bearer k\xe9y", 401), (None, 401),
    ):  # fmt: skip
        (start, *_), outcomes = through(greet, headers=[("authorization", given)] if given else [], api_key="key")
        assert (start["status"], outcomes) == (status, [OK if status == 200 else REFUSED]), given
    assert (b"www-authenticate", b"Bearer") in start["headers"]
    assert status_of([], path="/health", api_key="key") == 200


def test_a_proxy_may_send_its_own_host_with_a_key():
    headers = [("host", "models.example"), ("authorization", "Bearer key")]
    assert status_of(headers, True, api_key="key") == 200
    assert status_of([*headers, ("origin", "http://evil.example")], True, api_key="key") == 403


def test_origins_that_were_named_may_come():
    for origins, origin, status in (
        (("http://my.example",), "http://my.example", 200),
        (("http://my.example",), "http://my.example.evil", 403),
        (("*",), "http://any.example", 200),
        ((), "http://my.example", 403),
    ):
        assert status_of([("host", "localhost"), ("origin", origin)], True, origins=origins) == status, origin

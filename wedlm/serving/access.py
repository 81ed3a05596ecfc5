"""The middleware in front of the routes: who has access, how large a body may be, and when a client has left."""

import asyncio
import hmac
import math
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wedlm.serving.http_errors import FULL, RETRY_AFTER, error_response
from wedlm.serving.server_metrics import Metrics, RequestRecord

BODY_BYTES = 2**20  # more than a context of 131,072 tokens, and JSON that the event loop reads in a moment
BODY_SECONDS = 60  # a body that comes slower holds memory and a connection
# How much of the body of a refused request is read and dropped: clients first send, and lose the answer to a reset.
DROPPED_BYTES, DROPPED_SECONDS = 256 * BODY_BYTES, 10
# Names that end so are reserved, so no web page has one. Containers reach their host as host.docker.internal.
RESERVED_ENDS = (".localhost", ".internal")
HEALTH = "/health"  # needs neither a key, for a balancer sends none, nor a place among `max_requests`


@dataclass
class AccessMiddleware:
    """Reads the whole body, passes it on, and cancels the request when its client leaves.

    A web page can reach a server that listens on this machine alone, by a name of its own that leads here; `Host` and
    `Origin` tell that name. Pages of `origins` may send requests; "*" stands for all.
    """

    app: ASGIApp
    metrics: Metrics
    this_machine_only: bool
    api_key: str | None = None
    origins: Collection[str] = ()
    max_requests: float = math.inf
    num_running: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        record = RequestRecord(scope["method"], scope["path"])

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self.admit(scope | {"record": record}, receive, send_and_record)
        except* ClientDisconnect:
            record.has_left = True
        finally:
            record.close(self.metrics)

    async def admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks a request, reads its body and has it answered."""
        request, is_open = Request(scope, receive), scope["path"] == HEALTH
        try:
            if self.this_machine_only:
                self.check_names(request.headers)
            if self.api_key is not None and not is_open:
                check_key(request.headers, self.api_key)
            body = await read_body(request)
            if self.num_running >= self.max_requests and not is_open:
                raise HTTPException(503, FULL, RETRY_AFTER)
        except HTTPException as error:
            return await refuse(error, request, send)
        self.num_running += not is_open
        try:
            await self.run_while_connected(body, scope, receive, send)
        finally:
            self.num_running -= not is_open

    async def run_while_connected(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await asyncio.Future()  # a disconnect cancels the app

        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(raise_when_disconnected(receive))
            await self.app(scope, receive_body, send)
            watcher.cancel()

    def check_names(self, headers: Headers) -> None:
        """Refuses names that do not lead to this machine alone; with a key a foreign `Host` may be that of a proxy."""
        for header in ("origin",) if self.api_key is not None else ("host", "origin"):
            for value in headers.getlist(header):
                if header == "origin" and ("*" in self.origins or value in self.origins):
                    continue
                if not is_this_machine(value):
                    raise HTTPException(
                        403,
                        f"{header.capitalize()} {value!r} is not this machine, and this server answers this machine "
                        "alone; use http://127.0.0.1, or start the server with --host 0.0.0.0.",
                    )


def is_this_machine(value: str) -> bool:
    """Whether the name or address in a `Host` or an `Origin` leads to this machine alone."""
    try:
        name = urlsplit(value if "//" in value else f"//{value}").hostname or ""
        return f".{name}".endswith(RESERVED_ENDS) or ip_address(name).is_loopback
    except ValueError:
        return False


def check_key(headers: Headers, api_key: str) -> None:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), api_key.encode()):
        raise HTTPException(
            401,
            "The request has no valid key; send the server's --api-key as Authorization: Bearer KEY.",
            {"WWW-Authenticate": "Bearer"},
        )


async def read_body(request: Request) -> bytes:
    """The body of a request, which may come in chunks without a Content-Length."""
    body = bytearray()
    check_size(int(request.headers.get("content-length", 0)))
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                check_size(len(body))
    except TimeoutError as error:
        raise HTTPException(408, f"The body took longer than {BODY_SECONDS} seconds; send it faster.") from error
    return bytes(body)


async def refuse(error: HTTPException, request: Request, send: Send) -> None:
    """Answers with an error, and closes the connection when the client has sent its body, or too much of it."""
    response = await error_response(request, error)
    response.headers["Connection"] = "close"
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    num_bytes = 0
    with suppress(TimeoutError, ClientDisconnect, RuntimeError):  # the last where all of the body was read before
        async with asyncio.timeout(DROPPED_SECONDS):
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > DROPPED_BYTES:
                    break
    await send({"type": "http.response.body"})


def check_size(num_bytes: int) -> None:
    if num_bytes > BODY_BYTES:
        raise HTTPException(413, f"The body of the request is larger than {BODY_BYTES} bytes; shorten it.")


async def raise_when_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect

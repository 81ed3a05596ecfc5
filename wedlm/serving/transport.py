"""The door of the server: who may come in, how much may be carried, and who has left."""

import asyncio
import hmac
import math
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wedlm.serving.errors import error_response, too_many
from wedlm.serving.limits import BODY_BYTES, BODY_SECONDS
from wedlm.serving.metrics import Metrics
from wedlm.serving.request_records import RequestRecord

# Names that end so are reserved, so no web page has one. Containers reach their host as host.docker.internal.
RESERVED_ENDS = (".localhost", ".internal")
OPEN_PATHS = ("/health",)  # a balancer asks without a key


class Door:
    """A middleware that reads the whole body, hands it on, and ends the request when its client leaves.

    Args:
        app (`ASGIApp`): The app behind the door.
        metrics (`Metrics`): Counts the requests.
        this_machine_only (`bool`): Whether the server listens on this machine alone. A web page can reach it even so,
            by a name of its own that leads here; `Host` and `Origin` then tell that name.
        api_key (`str`, *optional*): The key that requests must have.
        origins (`Collection[str]`): The origins of web pages that may send requests; "*" stands for all.
        most (`float`): The most requests that are answered at a time, besides those for /health.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        this_machine_only: bool,
        api_key: str | None = None,
        origins: Collection[str] = (),
        most: float = math.inf,
    ):
        self.app, self.metrics = app, metrics
        self.this_machine_only, self.api_key, self.origins = this_machine_only, api_key, origins
        self.most, self.num_answered = most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        record = RequestRecord(scope["method"], scope["path"])

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self.enter(scope | {"record": record}, receive, send_and_note, record)
        finally:
            record.close(self.metrics)

    async def enter(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        """Reads the body of a request that may come in, and has it answered."""
        headers = Headers(scope=scope)
        try:
            if self.this_machine_only:
                self.refuse_foreign(headers)
            if self.api_key is not None and scope["path"] not in OPEN_PATHS:
                refuse_without_key(headers, self.api_key)
            body = await body_of(headers, receive)
            is_open = scope["path"] in OPEN_PATHS
            if self.num_answered >= self.most and not is_open:
                raise too_many()
        except ClientDisconnect:
            record.has_left = True
            return
        except HTTPException as error:
            response = await error_response(Request(scope), error)
            return await response(scope, receive, send)
        self.num_answered += not is_open
        try:
            await self.answer(body, scope, receive, send, record)
        finally:
            self.num_answered -= not is_open

    async def answer(self, body: bytes, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Message:
            for message in messages:
                return message
            return await asyncio.Future()  # the client's leaving cancels the app

        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(wait_until_it_leaves(receive))
                await self.app(scope, receive_again, send)
                watcher.cancel()
        except* ClientDisconnect:
            record.has_left = True

    def refuse_foreign(self, headers: Headers) -> None:
        """Refuses names that do not lead to this machine alone; with a key a foreign `Host` may be that of a proxy."""
        for header in ("origin",) if self.api_key is not None else ("host", "origin"):
            for value in headers.getlist(header):
                if header == "origin" and ("*" in self.origins or value in self.origins):
                    continue
                if not is_this_machine(host_in(value)):
                    raise HTTPException(
                        403,
                        f"{header.capitalize()} {value!r} is not this machine, and this server answers this machine "
                        "alone; use http://127.0.0.1, or start the server with --host 0.0.0.0.",
                    )


def is_this_machine(name: str | None) -> bool:
    """Whether the name or address of a host leads to this machine alone."""
    if f".{name}".endswith(RESERVED_ENDS):
        return True
    try:
        return ip_address(name or "").is_loopback
    except ValueError:
        return False


def host_in(value: str) -> str | None:
    """The name or address in a `Host` or an `Origin`."""
    try:
        return urlsplit(value if "//" in value else f"//{value}").hostname
    except ValueError:
        return None


def refuse_without_key(headers: Headers, api_key: str) -> None:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), api_key.encode()):
        raise HTTPException(
            401,
            "The request has no valid key; send the server's --api-key as Authorization: Bearer KEY.",
            {"WWW-Authenticate": "Bearer"},
        )


async def body_of(headers: Headers, receive: Receive) -> bytes:
    """The whole body, which may come in chunks without a Content-Length."""
    declared, body, is_more = headers.get("content-length", ""), bytearray(), True
    refuse_large(int(declared) if declared.isdecimal() else 0)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while is_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                body += message.get("body", b"")
                refuse_large(len(body))
                is_more = message.get("more_body", False)
    except TimeoutError as error:
        raise HTTPException(408, f"The body took longer than {BODY_SECONDS} seconds; send it faster.") from error
    return bytes(body)


def refuse_large(num_bytes: int) -> None:
    if num_bytes > BODY_BYTES:
        raise HTTPException(413, f"The body of the request is larger than {BODY_BYTES} bytes; shorten it.")


async def wait_until_it_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect

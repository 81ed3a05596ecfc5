"""The door of the server: who may come in, how much may be carried, and who has left."""

import asyncio
import threading
from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wedlm.serving.errors import error_response
from wedlm.serving.limits import BODY_BYTES, BODY_SECONDS
from wedlm.serving.worker import client_has_left


class Door:
    """A middleware that reads the whole body, hands it on, and ends the request when its client leaves.

    Args:
        app (`ASGIApp`): The app behind the door.
        this_machine_only (`bool`): Whether the server listens on this machine alone. A web page can reach it even so,
            by a name of its own that leads here; `Host` and `Origin` then tell that name.
    """

    def __init__(self, app: ASGIApp, this_machine_only: bool):
        self.app, self.this_machine_only = app, this_machine_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        try:
            if self.this_machine_only:
                refuse_foreign(headers)
            body = await body_of(headers, receive)
        except ClientDisconnect:
            return
        except HTTPException as error:
            response = await error_response(Request(scope), error)
            return await response(scope, receive, send)
        await self.answer(body, scope, receive, send)

    async def answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Message:
            for message in messages:
                return message
            return await asyncio.Future()  # the client's leaving cancels the app

        has_left = threading.Event()
        client_has_left.set(has_left)
        try:
            async with asyncio.TaskGroup() as group:
                watcher = group.create_task(wait_until_it_leaves(receive))
                await self.app(scope, receive_again, send)
                watcher.cancel()
        except* ClientDisconnect:
            pass
        finally:
            has_left.set()


def is_this_machine(name: str | None) -> bool:
    """Whether the name or address of a host leads to this machine alone."""
    try:
        return name == "localhost" or ip_address(name or "").is_loopback
    except ValueError:
        return False


def refuse_foreign(headers: Headers) -> None:
    for header in ("host", "origin"):
        for value in headers.getlist(header):
            try:
                name = urlsplit(value if "//" in value else f"//{value}").hostname
            except ValueError:
                name = None
            if not is_this_machine(name):
                raise HTTPException(
                    403,
                    f"{header.capitalize()} {value!r} is not this machine, and this server answers this machine "
                    "alone; use http://127.0.0.1, or start the server with --host 0.0.0.0.",
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

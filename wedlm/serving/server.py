"""`wedlm serve`: one WeDLM model behind OpenAI's protocol, all requests in one running batch."""

import asyncio
import logging
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import uvicorn
from fastapi.middleware.cors import CORSMiddleware

from wedlm.batching.manager import DIED
from wedlm.checkpoints.errors import one_line
from wedlm.checkpoints.load import load_checkpoint
from wedlm.generation.validation import check_decoding
from wedlm.serving.access import AccessMiddleware, is_this_machine
from wedlm.serving.connections import (
    BACKLOG,
    SPARE_CONNECTIONS,
    WRITE_BYTES,
    Connection,
    Connections,
    RepeatFilter,
    available_connections,
)
from wedlm.serving.engine import Engine
from wedlm.serving.requests import ServedModel
from wedlm.serving.routes import build_app
from wedlm.serving.server_metrics import log

GRACE_SECONDS = 3  # for the last answers to reach their clients
FURTHER_CONNECTIONS = 256  # beside those of requests that run or wait; each may hold a body


class Server(uvicorn.Server):
    """A server that ends the running requests when it is told to end, and itself when the engine has died."""

    def __init__(self, config: uvicorn.Config, engine: Engine):
        super().__init__(config)
        self.engine = engine
        self.server_state = Connections(config.limit_concurrency)

    async def on_tick(self, counter: int) -> bool:
        self.server_state.close_late()
        return await super().on_tick(counter) or self.engine.fatal_error is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would wait for the requests. And a process that ends while torch computes aborts or hangs.
        await asyncio.to_thread(self.engine.stop)
        await super().shutdown(sockets)


def serve(
    name: str,
    host: str,
    port: int,
    api_key: str | None,
    origins: tuple[str, ...],
    dtype: str,
    device: str | None,
    settings: dict[str, Any],
    max_batch_size: int,
    max_cached_tokens: int | None,
    max_waiting: int,
    request_timeout: float,
    fixed_shapes: bool,
) -> None:
    """Serves a checkpoint until Ctrl-C; exits with status 1 if the thread that generates dies.

    The arguments are the options of `wedlm serve`; `settings` replaces parameters of decoding of the checkpoint.
    """
    listening = listen(host, port)
    address, port, *_ = listening.getsockname()
    address = f"[{address}]" if ":" in address else address
    this_machine_only = is_this_machine(address)
    if not this_machine_only and api_key is None:
        print(f"Everybody who reaches {host} may use the model: there is no --api-key.", file=sys.stderr)
    model, tokenizer = load_checkpoint(name, dtype, device, only_decodes=True, or_stock=True)
    model.generation_config.update(**settings)
    for decoding in ("verified", model.generation_config.decoding):  # a batch decodes token by token as verified, too
        check_decoding(model, decoding)
    if Path(name).exists():
        name = Path(name).resolve().name
    engine = Engine(model, max_batch_size, max_cached_tokens, max_waiting, request_timeout or None, fixed_shapes)
    served = ServedModel(name, model, tokenizer, int(time.time()))
    app = build_app(served, engine)
    max_requests = available_connections(max_batch_size + max_waiting + FURTHER_CONNECTIONS)
    access = {"api_key": api_key, "origins": origins, "max_requests": max_requests}
    app.add_middleware(AccessMiddleware, metrics=engine.metrics, this_machine_only=this_machine_only, **access)
    if origins:  # outside of the middleware of access, since a browser asks first without a key
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=max_requests + SPARE_CONNECTIONS,
        backlog=BACKLOG,
        access_log=False,
    )
    log_requests()
    try:
        engine.manager.start()
        print(
            f"{name} answers at http://{address}:{port}/v1, up to {max_batch_size} texts at once, with "
            f"{engine.manager.max_cached_tokens:,} cached tokens. Ctrl-C ends it.",
            flush=True,
        )
        Server(config, engine).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn raises it again once it has ended
        pass
    finally:
        if engine.manager.is_running():  # Ctrl-C came before uvicorn waited for it
            engine.stop()
        served.grammars.close()
    if (error := engine.fatal_error) is not None:
        reason = f"{type(error).__name__}: {one_line(error)}"
        print(f"{DIED} ({reason}), and the server has ended; start it again.", file=sys.stderr)
        sys.exit(1)


def log_requests() -> None:
    """Writes a line to stderr for each request, and none about its settings."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    # transformers warns of a request's settings, with numbers in the sentence, so that clients could fill the log.
    for name in ("transformers.generation", "wedlm.generation.call"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="transformers")
    for name in ("asyncio", "uvicorn.error"):  # of connections that cannot be accepted, and of requests that are none
        logging.getLogger(name).addFilter(RepeatFilter())


def listen(host: str, port: int) -> socket.socket:
    """Listens on the port, so that clients can connect and wait while the model is loaded."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family)
        # asyncio sends each event at once only over sockets that name their protocol.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listening.detach())
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Else megabytes wait in the system, and none seems to be read.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, WRITE_BYTES)
        return listening
    except OSError as error:
        raise ValueError(
            f"The server cannot listen on --host {host!r} --port {port} ({error.strerror}); choose another port, "
            "such as 0 for one that is free, or another address of this machine."
        ) from error

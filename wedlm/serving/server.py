"""`wedlm serve`: one WeDLM model behind OpenAI's protocol, all requests in one running batch."""

import asyncio
import logging
import socket
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from transformers import GenerationConfig

from wedlm.batching.manager import DIED
from wedlm.checkpoints.errors import one_line
from wedlm.checkpoints.load import load_checkpoint
from wedlm.generation.parameters import DEFAULTS, check_parameters
from wedlm.serving.asked import Served
from wedlm.serving.connections import Connection, Connections, Seldom, places
from wedlm.serving.engine import Engine
from wedlm.serving.limits import ACCEPTED_AT_ONCE, FURTHER_CONNECTIONS, SPARE_CONNECTIONS, WRITE_BYTES
from wedlm.serving.request_records import log
from wedlm.serving.routes import build_app
from wedlm.serving.transport import Door, is_this_machine

GRACE_SECONDS = 3  # for the last answers to reach their clients


@dataclass
class Place:
    """Where the server listens, and whom it lets in.

    Args:
        host (`str`): The address to listen on.
        port (`int`): The port to listen on; 0 takes a free one.
        api_key (`str`, *optional*): The key that requests must have.
        origins (`tuple[str]`): The origins of web pages that may send requests; "*" stands for all.
    """

    host: str
    port: int
    api_key: str | None = None
    origins: tuple[str, ...] = ()


class Server(uvicorn.Server):
    """A server that ends the running requests when it is told to end, and itself when the engine has died."""

    def __init__(self, config: uvicorn.Config, served: Served, engine: Engine):
        super().__init__(config)
        self.served, self.engine = served, engine
        self.server_state = Connections(config.limit_concurrency)

    async def on_tick(self, counter: int) -> bool:
        self.server_state.close_late()
        return await super().on_tick(counter) or self.engine.is_dead

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn would wait for the requests. And a process that ends while torch computes aborts or hangs.
        await asyncio.to_thread(self.engine.stop)
        await super().shutdown(sockets)
        self.served.grammars.close()


def serve(
    name: str,
    place: Place,
    dtype: str,
    device: str | None,
    settings: dict[str, Any],
    max_batch_size: int,
    max_cached_tokens: int | None,
    max_waiting: int,
    request_timeout: float,
    fixed_shapes: bool = False,
) -> None:
    """Serves a checkpoint until Ctrl-C; exits with status 1 if the thread that generates dies.

    Args:
        name (`str`): A folder or a name on the Hub.
        place (`Place`): Where to listen, and whom to let in.
        dtype (`str`): The dtype of the weights, or `"auto"`.
        device (`str`, *optional*): The device; by default the GPU if there is one.
        settings (`dict`): The parameters of decoding that replace the checkpoint's.
        max_batch_size (`int`): The most rows of a forward.
        max_cached_tokens (`int`, *optional*): The most tokens whose keys and values are in memory.
        max_waiting (`int`): The most requests that wait.
        request_timeout (`float`): The seconds after which a request ends unanswered; 0 for none.
        fixed_shapes (`bool`, *optional*, defaults to `False`): Whether each text has forwards of its own.

    Raises:
        `ValueError`: whatever is in the way, as one sentence with the remedy.
    """
    check_parameters(GenerationConfig(**DEFAULTS | settings))
    listening = take_port(place.host, place.port)
    this_machine_only = is_this_machine(listening.getsockname()[0])
    if not this_machine_only and place.api_key is None:
        print(f"Everybody who reaches {place.host} may use the model: there is no --api-key.", file=sys.stderr)
    model, tokenizer = load_checkpoint(name, dtype, device, only_decodes=True)
    model.generation_config.update(**settings)
    if Path(name).is_dir():
        name = Path(name).resolve().name
    limits = max_batch_size, max_cached_tokens, max_waiting, request_timeout or None
    engine = Engine(model, tokenizer, *limits, fixed_shapes)
    served = Served(name, model, tokenizer, int(time.time()))
    most = places(max_batch_size + max_waiting + FURTHER_CONNECTIONS)
    app = guarded(build_app(served, engine), engine, place, this_machine_only, most)
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=most + SPARE_CONNECTIONS,
        backlog=ACCEPTED_AT_ONCE,
        access_log=False,
    )
    log_requests()
    host, port, *_ = listening.getsockname()
    address = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
    try:
        engine.start()
        print(
            f"{name} answers at {address}, up to {max_batch_size} texts at once, with "
            f"{engine.manager.max_cached_tokens:,} cached tokens. Ctrl-C ends it.",
            flush=True,
        )
        Server(config, served, engine).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn raises it again once it has ended
        pass
    finally:
        if engine.manager.is_running():  # Ctrl-C came before uvicorn waited for it
            engine.stop()
    if (error := engine.death) is not None:
        reason = f"{type(error).__name__}: {one_line(error)}"
        print(f"{DIED} ({reason}), and the server has ended; start it again.", file=sys.stderr)
        sys.exit(1)


def guarded(app: FastAPI, engine: Engine, place: Place, this_machine_only: bool, most: int) -> FastAPI:
    """Puts the door before an app, and before the door the answers to browsers that ask whether they may come."""
    app.add_middleware(
        Door,
        metrics=engine.metrics,
        this_machine_only=this_machine_only,
        api_key=place.api_key,
        origins=place.origins,
        most=most,
    )
    if place.origins:
        app.add_middleware(CORSMiddleware, allow_origins=place.origins, allow_methods=["*"], allow_headers=["*"])
    return app


def log_requests() -> None:
    """Has a line written to stderr for each request, and none about its settings."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    # Of a request's settings transformers says things with numbers in them, which clients could repeat without end.
    for name in ("transformers.generation", "wedlm.generation.call"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="transformers")
    for name in ("asyncio", "uvicorn.error"):  # of connections that cannot be accepted, and of requests that are none
        logging.getLogger(name).addFilter(Seldom())


def take_port(host: str, port: int) -> socket.socket:
    """Listens on the port, so that clients can connect and wait while the model is loaded."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family)
        # asyncio sends each event at once only over sockets that name their protocol.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listening.detach())
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Else megabytes wait in the system, and none seems to be taken.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, WRITE_BYTES)
        return listening
    except OSError as error:
        raise ValueError(
            f"--host {host!r} --port {port} cannot be listened on ({error.strerror}); choose another port, such as 0 "
            "for one that is free, or another address of this machine."
        ) from error

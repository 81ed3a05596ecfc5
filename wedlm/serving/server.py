"""`wedlm serve`: one WeDLM model behind transformers' own OpenAI-compatible server."""

import asyncio
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from transformers import GenerationConfig

from wedlm.checkpoints.load import load_checkpoint
from wedlm.generation.parameters import DEFAULTS, check_parameters
from wedlm.serving.limits import CONNECTIONS
from wedlm.serving.one_model import OneModel
from wedlm.serving.routes import build_app
from wedlm.serving.transport import is_this_machine
from wedlm.serving.worker import OneAtATime

GRACE_SECONDS = 3  # for the last answers to reach their clients


class Server(uvicorn.Server):
    """A server that ends the running requests when it is told to end; uvicorn would wait for them."""

    def __init__(self, config: uvicorn.Config, state: OneAtATime):
        super().__init__(config)
        self.state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # First the worker must be idle: a process that ends while torch computes aborts or hangs.
        await asyncio.to_thread(self.state.shutdown)
        await super().shutdown(sockets)


def serve(name: str, host: str, port: int, dtype: str, device: str | None, settings: dict[str, Any]) -> None:
    """Serves a checkpoint until Ctrl-C.

    Args:
        name (`str`): A folder or a name on the Hub.
        host (`str`): The address to listen on.
        port (`int`): The port to listen on; 0 takes a free one.
        dtype (`str`): The dtype of the weights, or `"auto"`.
        device (`str`, *optional*): The device; by default the GPU if there is one.
        settings (`dict`): The parameters of decoding that replace the checkpoint's.

    Raises:
        `ValueError`: whatever is in the way, as one sentence with the remedy.
    """
    check_parameters(GenerationConfig(**DEFAULTS | settings))
    listening = take_port(host, port)
    this_machine_only = is_this_machine(listening.getsockname()[0])
    if not this_machine_only:
        print(f"Everybody who reaches {host} may use the model: there is no key.", file=sys.stderr)
    model, tokenizer = load_checkpoint(name, dtype, device)
    model.generation_config.update(**settings)
    if Path(name).is_dir():
        name = Path(name).resolve().name
    host, port, *_ = listening.getsockname()
    address = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
    state = OneAtATime()
    app = build_app(OneModel(name, model, tokenizer), state, this_machine_only)
    config = uvicorn.Config(app, timeout_graceful_shutdown=GRACE_SECONDS, limit_concurrency=CONNECTIONS)
    with suppress(KeyboardInterrupt):  # uvicorn raises it again once it has ended
        print(f"{name} answers at {address}, one request at a time; others wait. Ctrl-C ends it.", flush=True)
        Server(config, state).run(sockets=[listening])


def take_port(host: str, port: int) -> socket.socket:
    """Listens on the port, so that clients can connect and wait while the model is loaded."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except OSError as error:
        raise ValueError(
            f"--host {host!r} --port {port} cannot be listened on ({error.strerror}); choose another port, such as 0 "
            "for one that is free, or another address of this machine."
        ) from error

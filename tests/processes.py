"""A function in two processes that know each other."""

import os
import socket
from collections.abc import Callable
from multiprocessing import get_context

import torch
from torch.multiprocessing import start_processes


def run_two_processes(function: Callable, *arguments) -> None:
    """Calls a function of a module in two processes of a CPU, with the environment that torchrun gives them.

    They are forks of one process, which has imported the package and done nothing else: starting Python anew for each
    takes longer than their work.
    """
    get_context("forkserver").set_forkserver_preload(["wedlm.training.train"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    start_processes(call_as_rank, (port, function, arguments), nprocs=2, start_method="forkserver")


def call_as_rank(rank: int, port: int, function: Callable, arguments: tuple) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
    torch.set_num_threads(1)
    function(*arguments)

"""Runs a function in forked ranks, as torchrun would start them; forking saves each of them the import of torch."""

import json
import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError


def in_ranks(ranks: int, folder: Path, function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns on rank 0; on the others its LLM never returns."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = folder / f"result-{port}.json"
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_rank, args=(rank, ranks, port, out, function, args)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        if process.exitcode is None:
            process.kill()
    assert [process.exitcode for process in processes] == [0] * ranks
    return json.loads(out.read_text())


def _rank(rank: int, ranks: int, port: int, out: Path, function: Callable[..., Any], args: Any) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in places.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    torch.set_num_threads(1)
    try:
        result = function(*args)
    except UserError as error:
        result = str(error)
    if rank == 0:
        out.write_text(json.dumps(result))

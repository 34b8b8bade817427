"""Where ranks meet: the environment of torchrun or of `launch`, and a TCPStore that rank 0 or torchrun serves."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistError, Store, TCPStore

from genwright.errors import UserError

ARRIVAL = 45  # seconds until a rank that has not arrived ends all of them
LOCALHOST = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """This process among the ranks, and where they meet."""

    rank: int
    ranks: int
    local_rank: int = 0  # among those of this machine
    local_ranks: int = 1
    host: str = LOCALHOST
    port: int = 0  # 0 is any free port
    served: bool = False  # whether torchrun serves the store

    @classmethod
    def from_environment(cls) -> "Place | None":
        """What torchrun says, or None if this process was not started by it."""
        env = os.environ
        if "RANK" not in env or "WORLD_SIZE" not in env:
            return None
        try:
            rank, ranks = int(env["RANK"]), int(env["WORLD_SIZE"])
            local_rank, local_ranks = int(env.get("LOCAL_RANK", rank)), int(env.get("LOCAL_WORLD_SIZE", ranks))
            host, port = env.get("MASTER_ADDR", LOCALHOST), int(env.get("MASTER_PORT", "29500"))
        except ValueError:
            raise UserError("RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_PORT must be numbers.") from None
        if not 0 <= rank < ranks:
            raise UserError(f"RANK must be between 0 and WORLD_SIZE - 1, not {rank} of {ranks}.")
        return cls(rank, ranks, local_rank, local_ranks, host, port, env.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


def listen(host: str, port: int) -> socket.socket:
    """A socket for rank 0's store; it is bound to this host alone, while a TCPStore's own would be open to all."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = "is in use" if error.errno == 98 else f"cannot be used: {error.strerror}"
        raise UserError(f"Port {port} of {host}, where the ranks meet, {reason}; set MASTER_PORT to another.") from None
    listener.listen(1024)
    return listener


def serve_store(listener: socket.socket) -> TCPStore:
    """Rank 0's store on a socket from `listen`."""
    host, port = listener.getsockname()[:2]
    wait = timedelta(seconds=ARRIVAL)
    return TCPStore(host, port, None, True, wait, wait_for_workers=False, master_listen_fd=listener.detach())


def reach_store(place: Place) -> TCPStore:
    """The store that rank 0 or torchrun serves."""
    try:
        wait = timedelta(seconds=ARRIVAL)
        return TCPStore(place.host, place.port, None, False, wait, wait_for_workers=False)
    except DistError:
        raise UserError(
            f"Rank {place.rank} could not reach rank 0 at {place.host}:{place.port} within {ARRIVAL} s."
        ) from None


def arrive(store: Store, place: Place, check: Callable[[], None]) -> None:
    """Wait until every rank is here; `check` raises if one cannot come any more."""
    store.set(f"arrived/{place.rank}", "")
    waited, now = 0.0, time.monotonic()
    missing = list(range(place.ranks))
    while missing := [rank for rank in missing if not store.check([f"arrived/{rank}"])]:
        check()
        before, now = now, time.monotonic()
        waited += min(now - before, 1.0)  # without the time in which Ctrl-Z had stopped this process
        if waited > ARRIVAL:
            names = ", ".join(map(str, missing))
            raise UserError(f"Rank {names} of {place.ranks} did not start within {ARRIVAL} s.")
        time.sleep(0.05)

"""Start the other ranks on this machine: rank 0 is the caller, and each further rank a process of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from genwright.errors import UserError
from genwright.parallel.rendezvous import LOCALHOST

LOST_ANOTHER = 3  # exit status of a rank that ended because it lost another one


def loopback() -> str:
    """The name of the network interface of localhost."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


class Children:
    """The processes of ranks 1 to N - 1."""

    def __init__(self, module: str, ranks: int, port: int, threads: int, arguments: Sequence[str] = ()):
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            net = {"MASTER_ADDR": LOCALHOST, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": loopback()}
            env = os.environ | {name: str(value) for name, value in {**place, **net}.items()}
            env |= {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            env.pop("TORCHELASTIC_USE_AGENT_STORE", None)
            self._processes[rank] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )

    def check(self) -> None:
        """Raise a UserError if one of them has ended."""
        if sentence := self.ended():
            raise UserError(sentence)

    def ended(self) -> str | None:
        """Why a rank ended, if possible one that did not end because of another; None if all run."""
        codes = {rank: code for rank, each in self._processes.items() if (code := each.poll()) is not None}
        for rank, code in sorted(codes.items(), key=lambda item: item[1] == LOST_ANOTHER):
            if code < 0:
                name = signal.Signals(-code).name
                return f"Rank {rank} was killed by {name}, so all ranks have ended."
            return f"Rank {rank} ended with exit status {code}, so all ranks have ended."
        return None

    def pid(self, rank: int) -> int:
        return self._processes[rank].pid

    def end(self, wait: float = 0.0) -> None:
        """End them by force once they have had `wait` seconds to end by themselves."""
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(wait)
            process.kill()
        for process in self._processes.values():
            process.wait()

"""Watchdog: notices a rank that died or cannot be reached, and ends the others with one sentence."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta

from torch.distributed import DistError, PrefixStore

BEAT = 2.0  # seconds between two heartbeats of a rank
SILENCE = 30.0  # seconds without a heartbeat after which a rank counts as lost


class Watchdog:
    """Each rank's heartbeat is a number that it counts up in the store; it reads those of the others.

    `on_loss` is called once, from a thread, with the sentence that says which rank was lost and why. A second thread
    judges, because a store that cannot be reached blocks the first one.
    """

    def __init__(
        self, store: PrefixStore, rank: int, ranks: int, on_loss: Callable[[str], None], check: Callable[[], None]
    ):
        self._store = store.clone()  # type: ignore[attr-defined]  # a connection of its own; torch has no annotation
        self._store.set_timeout(timedelta(seconds=SILENCE))
        self._rank, self._others = rank, [other for other in range(ranks) if other != rank]
        self._on_loss, self._check = on_loss, check
        self._seen: dict[int, tuple[bytes, float]] = {}  # of each other rank: its number, and when it changed
        self._reached = time.monotonic()
        self._stopped = threading.Event()
        self._beat(0)
        for work in (self._watch, self._judge):
            threading.Thread(target=work, name="genwright-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def report(self, sentence: str) -> None:
        """Tell the other ranks why this one ends; the first report stands."""
        with suppress(DistError, RuntimeError):
            self._store.compare_set("failed", "", sentence)

    def reported(self) -> str | None:
        with suppress(DistError, RuntimeError):
            if self._store.check(["failed"]):
                return self._store.get("failed").decode()
        return None

    def silent(self, seconds: float, now: float) -> list[int]:
        """The ranks without a heartbeat for this long."""
        return [rank for rank, (_, changed) in self._seen.items() if now - changed > seconds]

    def _beat(self, number: int) -> None:
        self._store.set(f"beat/{self._rank}", str(number))
        now = time.monotonic()
        for rank, value in zip(self._others, self._read(self._others), strict=True):
            if rank not in self._seen or self._seen[rank][0] != value:
                self._seen[rank] = value, now
        self._reached = now

    def _read(self, ranks: Iterable[int]) -> list[bytes]:
        keys = [f"beat/{rank}" for rank in ranks]
        return [self._store.get(key) if self._store.check([key]) else b"" for key in keys]

    def _watch(self) -> None:
        number = 0
        while not self._stopped.wait(BEAT):
            number += 1
            with suppress(DistError, RuntimeError):
                self._beat(number)

    def _judge(self) -> None:
        now = time.monotonic()
        while not self._stopped.wait(BEAT / 4):
            before, now = now, time.monotonic()
            if now - before > 2 * BEAT:  # Ctrl-Z stopped this process, and with it those that it waits for
                self._start_again(now)
            elif sentence := self._loss(now):
                self._stopped.set()
                self._on_loss(sentence)

    def _start_again(self, now: float) -> None:
        """Count the silence from now on."""
        self._reached = now
        for rank, (value, _) in list(self._seen.items()):
            self._seen[rank] = value, now

    def _loss(self, now: float) -> str | None:
        if now - self._reached > SILENCE:
            return f"Rank {self._rank} could not reach the others for {SILENCE:.0f} s, so it has ended."
        if silent := self.silent(SILENCE, now):
            return lost(silent[0])
        try:
            self._check()
        except Exception as error:
            return str(error)
        return None


def lost(rank: int) -> str:
    return f"Rank {rank} gave no sign of life for {SILENCE:.0f} s, so all ranks have ended."

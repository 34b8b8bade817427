"""The watchdog judges by the time in which its own process ran."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from torch.distributed import PrefixStore

from genwright.parallel import rendezvous, watchdog
from genwright.parallel.rendezvous import LOCALHOST, Place, arrive, listen, serve_store
from genwright.parallel.watchdog import Watchdog


class Clock:
    """A clock that can be set forward, as it is for processes that were stopped and continue."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    for module in (watchdog, rendezvous):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=time.sleep))
    monkeypatch.setattr(watchdog, "BEAT", 0.1)
    monkeypatch.setattr(watchdog, "SILENCE", 1.5)
    return clock


def test_ranks_that_were_stopped_together_go_on(clock: Clock) -> None:
    """As by Ctrl-Z and fg; a rank that stays silent afterwards is still lost."""
    store = PrefixStore("test", serve_store(listen(LOCALHOST, 0)))
    sentences: list[str] = []
    is_lost, looked = threading.Event(), threading.Semaphore(0)

    def lose(sentence: str) -> None:
        sentences.append(sentence)
        is_lost.set()

    first = Watchdog(store, 0, 2, lose, looked.release)
    second = Watchdog(store, 1, 2, lose, lambda: None)
    clock.ahead = 3600.0
    for _ in range(20):
        assert looked.acquire(timeout=10)
    assert not sentences
    second.stop()
    assert is_lost.wait(10)
    first.stop()
    assert sentences == ["Rank 1 gave no sign of life for 2 s, so all ranks have ended."]


def test_a_stop_while_ranks_start_does_not_count(clock: Clock) -> None:
    store = serve_store(listen(LOCALHOST, 0))
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        clock.ahead += 1000.0 if checks == 1 else 0.0
        if checks == 3:
            store.set("arrived/1", "")

    arrive(store, Place(0, 2), check)
    assert checks == 3

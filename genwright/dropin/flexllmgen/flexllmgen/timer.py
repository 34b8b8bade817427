"""Named timers that a whole process shares, as FlexLLMGen's: `timers("generate").costs`."""

import time
from collections.abc import Callable

Sync = Callable[[], object]


class Timer:
    """Collects the seconds between `start` and `stop`."""

    def __init__(self, name: str):
        self.name = name
        self.reset()

    def reset(self) -> None:
        self.costs: list[float] = []
        self._started: float | None = None

    @property
    def started(self) -> bool:
        return self._started is not None

    def start(self, sync_func: Sync | None = None) -> None:
        """Start, after `sync_func` has returned."""
        assert self._started is None, f"timer {self.name} has been started already"
        if sync_func is not None:
            sync_func()
        self._started = time.perf_counter()

    def stop(self, sync_func: Sync | None = None) -> None:
        """Add the seconds since `start`, after `sync_func` has returned."""
        assert self._started is not None, f"timer {self.name} has not been started"
        if sync_func is not None:
            sync_func()
        self.costs.append(time.perf_counter() - self._started)
        self._started = None

    def elapsed(self, mode: str = "average") -> float:
        """The `sum` of all costs, or their `average`; 0 if there are none."""
        if mode not in ("average", "sum"):
            raise RuntimeError(f"mode must be average or sum, not {mode!r}")
        return sum(self.costs) / (max(len(self.costs), 1) if mode == "average" else 1)


class Timers:
    """Timers by name, made on first use."""

    def __init__(self) -> None:
        self.timers: dict[str, Timer] = {}

    def __call__(self, name: str) -> Timer:
        return self.timers.setdefault(name, Timer(name))

    def __contains__(self, name: str) -> bool:
        return name in self.timers


timers = Timers()

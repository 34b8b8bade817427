"""The logger that a whole process shares, as in the original: lines of text, and values that are dumped together."""

import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from cm.dist_util import launched_ranks
from cm.log_formats import (
    CSVOutputFormat,
    HumanOutputFormat,
    JSONOutputFormat,
    KVWriter,
    TensorBoardOutputFormat,
    make_output_format,
)

__all__ = [
    "CSVOutputFormat", "HumanOutputFormat", "JSONOutputFormat", "KVWriter", "Logger", "TensorBoardOutputFormat",
    "configure", "debug", "dump_tabular", "dumpkvs", "error", "get_current", "get_dir", "getkvs", "info", "log",
    "logkv", "logkv_mean", "logkvs", "make_output_format", "profile", "profile_kv", "record_tabular", "reset",
    "scoped_configure", "set_comm", "set_level", "warn",
]  # fmt: skip

DEBUG, INFO, WARN, ERROR, DISABLED = 10, 20, 30, 40, 50


class Logger:
    """Values by name since the last dump, and the writers that get them."""

    DEFAULT: "Logger | None" = None
    CURRENT: "Logger | None" = None

    def __init__(self, dir: str, output_formats: list[KVWriter], comm: Any = None):
        self.name2val: dict[str, Any] = defaultdict(float)
        self.name2cnt: dict[str, int] = defaultdict(int)
        self.level, self.dir, self.output_formats, self.comm = INFO, dir, output_formats, comm

    def logkv(self, key: str, val: Any) -> None:
        self.name2val[key] = val

    def logkv_mean(self, key: str, val: Any) -> None:
        count = self.name2cnt[key]
        self.name2val[key] = self.name2val[key] * count / (count + 1) + val / (count + 1)
        self.name2cnt[key] = count + 1

    def dumpkvs(self) -> dict[str, Any]:
        """Write the values, or on rank 0 of `comm` their means over its ranks, and forget them."""
        values = dict(self.name2val)
        if self.comm is not None:
            counted = {name: (value, self.name2cnt.get(name, 1)) for name, value in values.items()}
            gathered = self.comm.gather(counted)
            values = _weighted_means(gathered) if self.comm.rank == 0 else {}
        for writer in self.output_formats if values else []:
            writer.writekvs(values)
        self.name2val.clear()
        self.name2cnt.clear()
        return values

    def log(self, *args: object, level: int = INFO) -> None:
        for writer in self.output_formats if self.level <= level else []:
            if isinstance(writer, HumanOutputFormat):
                writer.writeseq(map(str, args))

    def set_level(self, level: int) -> None:
        self.level = level

    def set_comm(self, comm: Any) -> None:
        self.comm = comm

    def get_dir(self) -> str:
        return self.dir

    def close(self) -> None:
        for writer in self.output_formats:
            writer.close()


def configure(
    dir: str | None = None, format_strs: list[str] | None = None, comm: Any = None, log_suffix: str = ""
) -> None:
    """Log into a folder: `dir`, else OPENAI_LOGDIR, else a new temporary one.

    Formats are OPENAI_LOG_FORMAT's; of other ranks than 0, OPENAI_LOG_FORMAT_MPI's. `comm` has gather and rank, as
    mpi4py's have, and values are averaged over it.
    """
    fresh = os.path.join(tempfile.gettempdir(), datetime.now().strftime("openai-%Y-%m-%d-%H-%M-%S-%f"))
    folder = os.path.expanduser(dir or os.environ.get("OPENAI_LOGDIR") or fresh)
    os.makedirs(folder, exist_ok=True)
    if rank := launched_ranks()[0]:
        log_suffix += f"-rank{rank:03d}"
    if format_strs is None:
        variable, default = ("OPENAI_LOG_FORMAT_MPI", "log") if rank else ("OPENAI_LOG_FORMAT", "stdout,log,csv")
        format_strs = os.environ.get(variable, default).split(",")
    writers = [make_output_format(name, folder, log_suffix) for name in format_strs if name]
    Logger.CURRENT = Logger(folder, writers, comm)
    log(f"Logging to {folder}")


def get_current() -> Logger:
    if Logger.CURRENT is None:
        configure()
        Logger.DEFAULT = Logger.CURRENT
    assert Logger.CURRENT is not None
    return Logger.CURRENT


def reset() -> None:
    """Return to the logger of a process that configured none."""
    if Logger.CURRENT is not None and Logger.CURRENT is not Logger.DEFAULT:
        Logger.CURRENT.close()
        Logger.CURRENT = Logger.DEFAULT


@contextmanager
def scoped_configure(dir: str | None = None, format_strs: list[str] | None = None, comm: Any = None) -> Iterator[None]:
    before = Logger.CURRENT
    configure(dir, format_strs, comm)
    inside = get_current()
    try:
        yield
    finally:
        inside.close()
        Logger.CURRENT = before


def logkv(key: str, val: Any) -> None:
    """Set a value until the next dump."""
    get_current().logkv(key, val)


def logkv_mean(key: str, val: Any) -> None:
    """Set a value to the mean of all since the last dump."""
    get_current().logkv_mean(key, val)


def logkvs(d: Mapping[str, Any]) -> None:
    for key, value in d.items():
        logkv(key, value)


def dumpkvs() -> dict[str, Any]:
    """Write all values."""
    return get_current().dumpkvs()


def getkvs() -> dict[str, Any]:
    return get_current().name2val


def log(*args: object, level: int = INFO) -> None:
    """Write a line of text."""
    get_current().log(*args, level=level)


def debug(*args: object) -> None:
    log(*args, level=DEBUG)


def info(*args: object) -> None:
    log(*args, level=INFO)


def warn(*args: object) -> None:
    log(*args, level=WARN)


def error(*args: object) -> None:
    log(*args, level=ERROR)


def set_level(level: int) -> None:
    get_current().set_level(level)


def set_comm(comm: Any) -> None:
    get_current().set_comm(comm)


def get_dir() -> str:
    """The folder of the log files."""
    return get_current().get_dir()


record_tabular = logkv
dump_tabular = dumpkvs


@contextmanager
def profile_kv(scopename: str) -> Iterator[None]:
    """Add the seconds of a block to wait_NAME."""
    started = time.perf_counter()
    try:
        yield
    finally:
        get_current().name2val[f"wait_{scopename}"] += time.perf_counter() - started


def profile(n: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the seconds of every call of a function to wait_NAME."""
    return lambda function: profile_kv(n)(function)


def _weighted_means(gathered: list[dict[str, tuple[Any, int]]]) -> dict[str, float]:
    """The mean of each name's values over ranks, each weighted by how many values it is the mean of."""
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for values in gathered:
        for name, (value, count) in values.items():
            found[name].append((float(value), count))
    return {name: sum(v * n for v, n in each) / sum(n for _, n in each) for name, each in found.items()}

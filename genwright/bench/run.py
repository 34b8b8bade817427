"""Run experiments one after the other, each in its own process: first calls are cold, and a crash stops only one."""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from genwright.bench.experiments import Experiment
from genwright.bench.rows import Row, Tell, blank
from genwright.errors import UserError


@dataclass(frozen=True)
class Settings:
    """What to do besides measuring."""

    peers: bool = False
    profile: Path | None = None  # path for the trace of the last sample


def run(experiments: Sequence[Experiment], settings: Settings, tell: Tell) -> Iterator[tuple[list[Row], list[str]]]:
    """Yield the rows of each experiment, and notes of the profiler."""
    for number, experiment in enumerate(experiments):
        profile = settings.profile
        if profile is not None and len(experiments) > 1:
            profile = profile.with_stem(f"{profile.stem}-{number + 1}")
        told = _prefixed(tell, f"{number + 1}/{len(experiments)} {experiment.name}: ")
        yield _isolated(experiment, replace(settings, profile=profile), told)


def _prefixed(tell: Tell, prefix: str) -> Tell:
    return lambda what, done, total: tell(prefix + what, done, total)


def _isolated(experiment: Experiment, settings: Settings, tell: Tell) -> tuple[list[Row], list[str]]:
    if experiment.device == "cuda" and not torch.cuda.is_available():
        return [blank(experiment, "Needs a GPU.", skipped=True)], []
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, experiment, settings))
    process.start()
    theirs.close()
    notes: list[str] = []
    try:
        while True:
            kind, *message = ours.recv()
            if kind == "rows":
                return message[0], notes
            if kind == "note":
                notes += message
            else:
                tell(*message)
    except EOFError:
        process.join()
        return [blank(experiment, _why(process.exitcode))], notes
    finally:
        process.terminate()
        process.join()


def _why(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "The process was killed; the system does so when memory runs out."
    if code is not None and code < 0:
        return f"The process died of {signal.Signals(-code).name}."
    return f"The process ended with exit code {code}."


def _work(connection: Connection, experiment: Experiment, settings: Settings) -> None:
    """In the child process: measure, and send progress and then the rows."""
    from genwright.bench.measure import measure, sentence
    from genwright.bench.peers import installed_peers
    from genwright.bench.profile import profiled

    def tell(what: str, done: int, total: int) -> None:
        connection.send(("stage", what, done, total))

    def trace(call: Callable[[], object]) -> None:
        assert settings.profile is not None
        connection.send(("note", f"{experiment.name}\n{profiled(call, settings.profile)}"))

    try:
        rows = measure(
            experiment, tell, installed_peers() if settings.peers else (), trace if settings.profile else None
        )
    except KeyboardInterrupt:
        return
    except Exception as error:
        if not isinstance(error, UserError | torch.OutOfMemoryError | MemoryError):
            traceback.print_exc()  # a bug: the sentence in the row would not be enough to find it
        rows = [blank(experiment, sentence(error))]
    connection.send(("rows", rows))

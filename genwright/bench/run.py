"""Experiments one after the other, each in a process of its own: a first call is one, and what breaks breaks alone."""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from genwright.bench.experiments import Experiment
from genwright.bench.rows import Row, Sample, Tell, blank
from genwright.errors import UserError


@dataclass(frozen=True)
class Settings:
    """What is done beside measuring."""

    peers: bool = False
    profile: Path | None = None  # where the last sample's trace goes


def run(experiments: Sequence[Experiment], settings: Settings, tell: Tell) -> Iterator[tuple[list[Row], list[str]]]:
    """The rows of each experiment, as they come, and what the profiler has to say."""
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
        return [blank(experiment, "needs a GPU.", skipped=True)], []
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
        return "the process was killed, as the system does when memory runs out."
    if code is not None and code < 0:
        return f"the process died of {signal.Signals(-code).name}."
    return f"the process ended with exit code {code}."


def _work(connection: Connection, experiment: Experiment, settings: Settings) -> None:
    """In the child: measure, and send what is being done and then the rows."""
    from genwright.bench.measure import measure, sentence
    from genwright.bench.peers import installed_peers
    from genwright.bench.profile import profiled

    def tell(what: str, done: int, total: int) -> None:
        connection.send(("stage", what, done, total))

    def trace(call: Callable[[], Sample]) -> None:
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
            traceback.print_exc()  # a mistake of ours, which the row's sentence alone would not let anyone find
        rows = [blank(experiment, sentence(error))]
    connection.send(("rows", rows))

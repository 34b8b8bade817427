"""Ranks: the process groups of the ranks that share a model, and what they tell each other."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from genwright.errors import UserError
from genwright.parallel.launch import LOST_ANOTHER, Children, loopback
from genwright.parallel.layout import Layout
from genwright.parallel.rendezvous import LOCALHOST, Place, arrive, listen, reach_store, serve_store
from genwright.parallel.watchdog import BEAT, SILENCE, Watchdog, lost

FOREVER = timedelta(days=365)  # a rank waits for work as long as the watchdog lets it
SMALL = 1 << 12  # bytes of a message that is sent in one broadcast
LENGTH = 8  # bytes before the message that have its length


class Ranks:
    """This process among the ranks; made by `meet`."""

    layout: Layout
    stage: dist.ProcessGroup  # of the ranks that share this one's layers
    column: dist.ProcessGroup  # of the ranks that have the same part of every stage
    on_device: bool  # whether the groups are NCCL's, which work on GPU memory and within CUDA graphs

    def __init__(self, place: Place, store: dist.PrefixStore, children: Children | None):
        self.place, self.rank = place, place.rank
        self.children = children  # the processes that this one started
        self._busy = False  # whether a thread is in `guard`
        self._sentence: str | None = None  # why the ranks have ended
        check = children.check if children is not None else lambda: None
        self._watchdog = Watchdog(store, place.rank, place.ranks, self._lose, check)

    def arrange(self, layout: Layout, device: torch.device) -> None:
        """Make the groups of a layout; every rank calls it."""
        own = device.type == "cuda" and torch.cuda.device_count() >= self.place.local_ranks
        self.layout, self.on_device = layout, own and dist.is_nccl_available()
        backend = "nccl" if self.on_device else "gloo"
        stages = [layout.stage_ranks(stage) for stage in range(layout.pp)]
        columns = [layout.column(rank) for rank in range(layout.tp)]
        self.stage = self._new_group(stages, backend)
        self.column = self._new_group(columns, backend)

    def _new_group(self, groups: list[list[int]], backend: str) -> dist.ProcessGroup:
        """Make all of these groups, because every rank must; returns this rank's."""
        with _environment("GLOO_SOCKET_IFNAME", loopback()) if self.children is not None else nullcontext():
            made = [(dist.new_group(ranks, FOREVER, backend), ranks) for ranks in groups]
        return next(group for group, ranks in made if self.rank in ranks)

    def broadcast(self, message: Any = None) -> Any:
        """Rank 0's message on every rank, as JSON."""
        text = json.dumps(message).encode() if self.rank == 0 else b""
        buffer = torch.zeros(LENGTH + SMALL, dtype=torch.uint8)
        buffer[:LENGTH] = _bytes(len(text).to_bytes(LENGTH, "little"))
        if 0 < len(text) <= SMALL:
            buffer[LENGTH : LENGTH + len(text)] = _bytes(text)
        dist.broadcast(buffer, 0)
        length = int.from_bytes(bytes(buffer[:LENGTH].tolist()), "little")
        rest = buffer[LENGTH : LENGTH + length]
        if length > SMALL:
            rest = _bytes(text) if self.rank == 0 else torch.empty(length, dtype=torch.uint8)
            dist.broadcast(rest, 0)
        return json.loads(rest.numpy().tobytes())

    def least(self, *values: int) -> list[int]:
        """The least of all ranks' values, one by one."""
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
        return [int(value) for value in tensor]

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turn the error of a collective, which names no rank, into the sentence that says which rank was lost."""
        if self._sentence is not None:
            raise UserError(self._sentence)
        self._busy = True
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            if not _is_lost(error):
                self._sentence = f"Rank {self.rank} failed: {type(error).__name__}: {error}"
                raise
            self._sentence = self._why()
            raise UserError(self._sentence) from None
        finally:
            self._busy = False

    def fail(self, sentence: str) -> None:
        """End all ranks for this reason."""
        self._sentence = sentence
        raise UserError(sentence)

    def _why(self) -> str:
        """Which rank was lost: one that reported an error, a process that ended, or one that stays silent."""
        end = time.monotonic() + SILENCE + 2 * BEAT
        while time.monotonic() < end and self._sentence is None:
            if sentence := self._watchdog.reported() or (self.children and self.children.ended()):
                return sentence
            if silent := self._watchdog.silent(4 * BEAT, time.monotonic()):
                return lost(silent[0])
            time.sleep(0.2)
        return self._sentence or "The connection to another rank was lost, so all ranks have ended."

    def _lose(self, sentence: str) -> None:
        """The watchdog's verdict: rank 0 ends its children, so that a waiting collective fails; others just end."""
        self._sentence = self._sentence or sentence
        if self.children is not None:
            self.children.end()
        end = time.monotonic() + 2 * BEAT
        while self._busy and self.rank == 0 and time.monotonic() < end:
            time.sleep(0.1)
        if self._busy or self.rank:  # a machine that cannot be reached closes no connection
            print(sentence, file=sys.stderr, flush=True)
            os._exit(LOST_ANOTHER)

    def exit(self, error: Exception) -> NoReturn:
        """End this process, a rank other than 0, by an error that rank 0 will print; it may be a lost rank."""
        if _is_lost(error):
            os._exit(LOST_ANOTHER)
        kind = "" if isinstance(error, UserError) else f" failed with {type(error).__name__}"
        self._watchdog.report(f"Rank {self.rank}{kind}: {error}")
        if kind:
            traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)  # threads that wait for other ranks would not end

    def close(self) -> None:
        """Leave the group, which ends ranks that wait for this one; rank 0 waits for its children."""
        self._watchdog.stop()
        if dist.is_initialized():
            dist.destroy_process_group()
        if self.children is not None:
            self.children.end(wait=0.0 if self._sentence else 20.0)
            self.children = None


def meet(ranks: int, module: str, threads: int, arguments: Sequence[str] = ()) -> Ranks:
    """Join the other ranks: those of torchrun, or processes `python -m module arguments` that are started here."""
    if dist.is_initialized():
        raise UserError("A process can run one model over several ranks at a time; close the other one first.")
    place = Place.from_environment()
    if place is not None:
        hosts = place.rank == 0 and not place.served
        return _connect(place, serve_store(listen(place.host, place.port)) if hosts else reach_store(place), None)
    listener = listen(LOCALHOST, 0)
    port = listener.getsockname()[1]
    store = serve_store(listener)
    children = Children(module, ranks, port, threads, arguments)
    with _environment("GLOO_SOCKET_IFNAME", loopback()):
        return _connect(Place(0, ranks, 0, ranks, LOCALHOST, port), store, children)


def _connect(place: Place, base: dist.Store, children: Children | None) -> Ranks:
    store = dist.PrefixStore(f"genwright/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", base)
    check: Callable[[], None] = children.check if children is not None else lambda: None
    try:
        arrive(store, place, check)
        ranks = Ranks(place, store, children)
        with ranks.guard():
            dist.init_process_group("gloo", timeout=FOREVER, world_size=place.ranks, rank=place.rank, store=store)
    except BaseException:
        if children is not None:
            children.end()
        raise
    return ranks


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable that a library reads; the caller's environment is left as it was."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _is_lost(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))

"""EngineLoop: the thread that runs an engine's steps, for callers in any thread."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

from genwright.errors import UserError
from genwright.kernels.cpu.threads import release_threads
from genwright.text.engine.engine import Engine
from genwright.text.engine.request import Piece, Request

WAIT = 0.2  # seconds until a waiting caller looks for signals
T = TypeVar("T")
Delivery = list[tuple[Request, Piece]] | BaseException  # new pieces, or the error that ended the requests
Deliver = Callable[[Delivery], None]


class EngineLoop:
    """Runs an engine on a thread of its own, which starts with the first request; every method is for any thread.

    Only that thread touches the engine. It must not hold the LLM, which ends it when it is garbage collected.
    """

    def __init__(self, engine: Engine, device: torch.device):
        self.engine, self._device = engine, device
        # A SimpleQueue, because its `put` is safe in signal handlers and finalizers.
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._owners: dict[Request, Deliver] = {}  # of the requests that have not ended
        self._lock = threading.RLock()  # nothing is put into the inbox after the end
        self._thread: threading.Thread | None = None
        self._closed = self._ended = False
        self._process = os.getpid()
        self._leave_processors()

    def submit(self, requests: list[Request], deliver: Deliver) -> None:
        """Run requests; a UserError if one of them is invalid, and then none is run.

        The loop's thread calls `deliver` after every step that changed some of them, or with the exception that ended
        them all. A request's last piece has its finish_reason; the loop does not change the request afterwards.
        """
        for request in requests:
            self.engine.check_request(request)
        self._post(partial(self._admit, requests, deliver, torch.get_num_threads()))

    def cancel(self, requests: Iterable[Request]) -> None:
        """Cancel those requests that have not ended, after the current step; does not wait for it."""
        if self._thread is not None and not self._closed and os.getpid() == self._process:
            self._inbox.put(partial(self._cancel, list(requests)))

    def call(self, work: Callable[[], T]) -> T:
        """Run a function on the loop's thread, between two steps; returns its result."""
        future: Future[T] = Future()
        self._post(partial(_fulfil, future, work, torch.get_num_threads()))
        return future.result()

    def close(self) -> None:
        """Cancel what runs, end the thread and remove the model's files on disk; further requests are refused."""
        if os.getpid() != self._process:
            return  # a forked child does not have the thread
        with self._lock:
            if self._thread is not None and not self._closed:
                self._inbox.put(self._end)
            self._closed = True
        # The loop's own thread gets here when the garbage collector runs there.
        if self._thread is not threading.current_thread():
            if self._thread is not None:
                self._thread.join()
            self.engine.close()

    def _post(self, command: Callable[[], None]) -> None:
        if os.getpid() != self._process:
            raise UserError("The model was loaded before this process was forked; load it in the child process.")
        self._leave_processors()
        with self._lock:
            if self._closed:
                raise UserError("The model has been closed; load it again.")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="genwright-engine", daemon=True)
                self._thread.start()
            self._inbox.put(command)

    def _leave_processors(self) -> None:
        """End the caller's OpenMP threads, because with more threads than processors the loop's would sleep."""
        if self._device.type == "cpu":
            release_threads()

    def _run(self) -> None:
        """Carry out what callers put into the inbox, and step as long as there are requests."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.synchronize()  # makes the context current, which kernels launched by the driver's API need
        while not self._ended:
            try:
                if not self._owners or not self._inbox.empty():
                    self._inbox.get()()  # without a variable, which would keep the last command's requests alive
                else:
                    self._hand_out(self.engine.step())
            except BaseException as error:
                self._fail(error)

    def _admit(self, requests: list[Request], deliver: Deliver, threads: int) -> None:
        _use_threads(threads)
        self._owners |= dict.fromkeys(requests, deliver)
        for request in requests:
            self.engine.submit(request)

    def _cancel(self, requests: list[Request]) -> None:
        requests = [request for request in requests if request in self._owners]
        self.engine.cancel(requests)
        self._hand_out(requests)

    def _end(self) -> None:
        self._ended = True
        self._cancel(list(self._owners))

    def _hand_out(self, changed: list[Request]) -> None:
        """Deliver what is new of these requests, once to each caller."""
        deliveries: dict[Deliver, list[tuple[Request, Piece]]] = {}
        for request in changed:
            if request not in self._owners:
                continue  # its caller has it already, cancelled
            deliver, piece = self._owners[request], request.take()
            deliveries.setdefault(deliver, []).append((request, piece))
            if piece.finish_reason is not None:
                del self._owners[request]
        for deliver, pieces in deliveries.items():
            self._deliver(deliver, pieces)

    def _deliver(self, deliver: Deliver, delivery: Delivery) -> None:
        try:
            deliver(delivery)
        except Exception:  # the caller is gone, such as an event loop that was closed
            orphans = [request for request, owner in self._owners.items() if owner == deliver]
            for request in orphans:
                del self._owners[request]
            self.engine.cancel(orphans)

    def _fail(self, error: BaseException) -> None:
        """Pass an exception of a logits processor to its caller, others to every caller, and cancel their requests."""
        failed: dict[Deliver, BaseException] = {
            deliver: request.exception for request, deliver in self._owners.items() if request.exception is not None
        } or dict.fromkeys(self._owners.values(), error)
        lost = [request for request, deliver in self._owners.items() if deliver in failed]
        for request in lost:
            del self._owners[request]
        with suppress(Exception):  # the first exception is the one to tell
            self.engine.cancel(lost)
        for deliver, reason in failed.items():
            self._deliver(deliver, reason)


def receive(deliveries: SimpleQueue[Delivery]) -> list[tuple[Request, Piece]]:
    """Wait for the next delivery and return its pieces; raises the exception if it is one."""
    while True:
        with suppress(Empty):  # a signal that arrives just before the wait does not interrupt it
            return unpack(deliveries.get(timeout=WAIT))


def unpack(delivery: Delivery) -> list[tuple[Request, Piece]]:
    """The pieces of a delivery; raises the exception if it is one."""
    if isinstance(delivery, BaseException):
        raise delivery
    return delivery


def only_ends(deliver: Deliver) -> Deliver:
    """`deliver` for a caller that waits for whole answers, so that a step which ends none does not wake it."""

    def deliver_ends(delivery: Delivery) -> None:
        if isinstance(delivery, BaseException):
            deliver(delivery)
        elif ended := [(request, piece) for request, piece in delivery if piece.finish_reason is not None]:
            deliver(ended)

    return deliver_ends


def _fulfil(future: Future[T], work: Callable[[], T], threads: int) -> None:
    _use_threads(threads)
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


def _use_threads(count: int) -> None:
    """Compute with as many threads as the caller would: torch.set_num_threads changes only the thread that calls it."""
    if count != torch.get_num_threads():
        torch.set_num_threads(count)

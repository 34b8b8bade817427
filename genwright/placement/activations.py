"""PlacedActivations: the hidden states of a step's micro-batches between blocks, with rows in all tiers."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from genwright.placement.disk import DiskFile
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier, Tiers

T = TypeVar("T")


class State:
    """One micro-batch's hidden state x [tokens, dim]: its first rows on the GPU, the next in CPU memory."""

    def __init__(self, cpu: Tensor, file: DiskFile | None) -> None:
        self.cpu, self.file = cpu, file  # for as many bytes as the largest micro-batch has there
        self.shape = torch.Size()
        self.gpu: Tensor | None = None  # the first rows, or all of x once it is asked for
        self.writing: Future[None] | None = None  # rows to disk
        self.loading: Future[None] | None = None  # rows from disk
        self.loaded: torch.cuda.Event | None = None
        self.asked = False


class PlacedActivations:
    """Keeps a micro-batch's state until its next block; `ask` for one early, and it moves while another computes."""

    def __init__(self, policy: Policy, tiers: Tiers, row_bytes: int, rows: int) -> None:
        """States of up to `rows` rows of `row_bytes` bytes."""
        self._shares = policy.shares("activations")
        self._tiers, self._on_gpu = tiers, tiers.device.type == "cuda"
        self._sizes = [(rows * share // 100 + 2) * row_bytes if share else 0 for share in self._shares]
        self._states: list[State] = []
        overlap = self._on_gpu and policy.overlap
        self._stream = torch.cuda.Stream(tiers.device) if overlap else None  # in order: stored before it is loaded
        self._disk_stream = torch.cuda.Stream(tiers.device) if self._on_gpu else None
        self._thread = ThreadPoolExecutor(1, "activations")  # in order: a state is written before it is read
        self._staging = tiers.cpu(self._sizes[2]) if self._sizes[2] else None  # of the thread

    def put(self, index: int, x: Tensor) -> None:
        """Keep micro-batch `index`'s state, which is not read otherwise from now on."""
        while index >= len(self._states):
            file = self._tiers.disk(f"activations-{len(self._states)}", self._sizes[2]) if self._sizes[2] else None
            self._states.append(State(self._tiers.cpu(self._sizes[1]), file))
        state, (gpu, cpu, disk) = self._states[index], self._split(x)
        state.shape, state.asked = x.shape, False
        if len(gpu) == len(x):
            state.gpu = x
            return
        state.gpu = gpu.clone()  # a view would keep all of x
        if len(cpu):
            self._on_stream(lambda: _bytes_of(state.cpu, cpu).copy_(cpu, non_blocking=True), x)
            self._count(Tier.GPU, Tier.CPU, cpu)
        if len(disk):
            computed = torch.cuda.current_stream(x.device).record_event() if self._on_gpu else None
            state.writing = self._thread.submit(self._write, state, disk, computed)
            self._count(Tier.GPU, Tier.DISK, disk)

    def ask(self, index: int) -> None:
        """Start to bring a state back."""
        if index >= len(self._states) or self._states[index].asked or self._states[index].gpu is None:
            return
        state = self._states[index]
        state.asked, kept = True, state.gpu
        assert kept is not None
        if len(kept) == state.shape[0]:
            return
        x = kept.new_empty(state.shape)
        gpu, cpu, disk = self._split(x)
        gpu.copy_(kept)
        if len(cpu):
            self._on_stream(lambda: cpu.copy_(_bytes_of(state.cpu, cpu), non_blocking=True), x)
            state.loaded = self._event()
            self._count(Tier.CPU, Tier.GPU, cpu)
        if len(disk):
            made = torch.cuda.current_stream(x.device).record_event() if self._on_gpu else None
            state.loading = self._thread.submit(self._read, state, disk, made)
            self._count(Tier.DISK, Tier.GPU, disk)
        state.gpu = x

    def get(self, index: int) -> Tensor:
        """The state; it must be put again before it is asked for again."""
        self.ask(index)
        state = self._states[index]
        if state.loaded is not None:
            torch.cuda.current_stream(self._tiers.device).wait_event(state.loaded)
        if state.writing is not None and state.loading is not None:
            state.writing.result()
            state.loading.result()
        x, state.gpu, state.loaded, state.loading = state.gpu, None, None, None
        assert x is not None
        return x

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        first, second = (len(x) * share // 100 for share in (self._shares[0], self._shares[0] + self._shares[1]))
        return x.tensor_split((first, second))

    def _on_stream(self, copy: Callable[[], T], x: Tensor) -> None:
        """Run a copy after what computes x, beside what computes later."""
        if self._stream is None:
            copy()
            return
        self._stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(self._stream):
            copy()
        x.record_stream(self._stream)  # its memory is not used again before the copy is done

    def _event(self) -> torch.cuda.Event | None:
        if not self._on_gpu:
            return None
        return (self._stream or torch.cuda.current_stream(self._tiers.device)).record_event()

    def _write(self, state: State, rows: Tensor, computed: torch.cuda.Event | None) -> None:
        assert state.file is not None and self._staging is not None
        if computed is not None:
            computed.synchronize()
        staged = _bytes_of(self._staging, rows)
        self._copy(staged, rows)
        state.file.write_from(staged).result()

    def _read(self, state: State, rows: Tensor, made: torch.cuda.Event | None) -> None:
        assert state.file is not None and self._staging is not None
        staged = _bytes_of(self._staging, rows)
        state.file.read_into(staged).result()
        if made is not None:
            made.synchronize()  # the memory may have been in use before
        self._copy(rows, staged)

    @torch.inference_mode()
    def _copy(self, target: Tensor, source: Tensor) -> None:
        """In the thread: copy, and wait until it is done."""
        with torch.cuda.stream(self._disk_stream):
            target.copy_(source, non_blocking=True)
        if self._disk_stream is not None:
            self._disk_stream.synchronize()

    def _count(self, source: Tier, target: Tier, rows: Tensor) -> None:
        self._tiers.use.move(source, target, rows.nbytes)


def _bytes_of(buffer: Tensor, rows: Tensor) -> Tensor:
    """The start of a buffer, in the shape of some rows."""
    return buffer[: rows.nbytes].view(rows.dtype).view(rows.shape)

"""PlacedActivations: the hidden states of a step's micro-batches between blocks, with rows in all tiers."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from genwright.placement.disk import ALIGNMENT, round_up
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier, Tiers

MOVING = 2  # states that are held while they move: one on its way out, one on its way in


class State:
    """One micro-batch's hidden state x [tokens, dim]: its first rows on the GPU, the next in CPU memory."""

    def __init__(self, cpu: int, disk: int) -> None:
        self.cpu, self.disk = cpu, disk  # offsets of its bytes there
        self.shape = torch.Size()
        self.gpu: Tensor | None = None  # the first rows, or all of x once it is asked for
        self.writing: Future[None] | None = None  # rows to disk
        self.loading: Future[None] | None = None  # rows from disk
        self.loaded: torch.cuda.Event | None = None
        self.asked = False


class PlacedActivations:
    """Keeps a micro-batch's state until its next block; `ask` for one early, and it moves while another computes."""

    def __init__(self, policy: Policy, tiers: Tiers, row_bytes: int, together: int, rows: int, batches: int) -> None:
        """For steps of up to `rows` rows in up to `batches` micro-batches, each of up to `together` rows."""
        self._shares, self._row_bytes = policy.shares("activations"), row_bytes
        self._tiers, self._on_gpu = tiers, tiers.device.type == "cuda"
        _, cpu, disk = (
            (rows * share // 100 + batches) * row_bytes + batches * ALIGNMENT if share else 0 for share in self._shares
        )
        self._cpu = tiers.cpu(cpu)
        self._file = tiers.disk("activations", disk) if disk else None
        staged = (together * self._shares[2] // 100 + 1) * row_bytes if disk else 0
        self._staging = tiers.cpu(staged)  # of the thread, on the way from and to the disk
        self._states: list[State] = []
        overlap = self._on_gpu and policy.overlap
        self._stream = torch.cuda.Stream(tiers.device) if overlap else None  # in order: stored before it is loaded
        self._moving: deque[tuple[Tensor, torch.cuda.Event]] = deque()  # states, and the ends of their copies
        self._disk_stream = torch.cuda.Stream(tiers.device) if self._on_gpu else None
        self._thread = ThreadPoolExecutor(1, "activations")  # in order: a state is written before it is read

    def begin(self, counts: Sequence[int]) -> None:
        """Begin a step whose micro-batches have so many rows."""
        self._states, cpu, disk = [], 0, 0
        for count in counts:
            self._states.append(State(cpu, disk))
            _, on_cpu, on_disk = self._rows(count)
            cpu = round_up(cpu + on_cpu * self._row_bytes)
            disk = round_up(disk + on_disk * self._row_bytes)

    def put(self, index: int, x: Tensor) -> None:
        """Keep micro-batch `index`'s state, which is not read otherwise from now on."""
        state, (gpu, cpu, disk) = self._states[index], x.split(self._rows(len(x)))
        state.shape, state.asked = x.shape, False
        if len(gpu) == len(x):
            state.gpu = x
            return
        state.gpu = gpu.clone()  # a view would keep all of x
        if len(cpu):
            self._move(_bytes_of(self._cpu, state.cpu, cpu), cpu, x)
            self._count(Tier.GPU, Tier.CPU, cpu)
        if len(disk):
            computed = torch.cuda.current_stream(x.device).record_event() if self._on_gpu else None
            state.writing = self._thread.submit(self._write, state, disk, computed)
            self._count(Tier.GPU, Tier.DISK, disk)

    def ask(self, index: int) -> None:
        """Start to bring a state back, unless it is in use."""
        state = self._states[index]
        if state.asked or state.gpu is None:
            return
        state.asked, kept = True, state.gpu
        if len(kept) == state.shape[0]:
            return
        x = kept.new_empty(state.shape)
        gpu, cpu, disk = x.split(self._rows(len(x)))
        gpu.copy_(kept)
        if len(cpu):
            state.loaded = self._move(cpu, _bytes_of(self._cpu, state.cpu, cpu), x)
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

    def _rows(self, count: int) -> list[int]:
        """How many rows are in each tier."""
        first, second = (count * share // 100 for share in (self._shares[0], self._shares[0] + self._shares[1]))
        return [first, second - first, count - second]

    def _move(self, target: Tensor, source: Tensor, x: Tensor) -> torch.cuda.Event | None:
        """Copy rows of x after what computes it, beside what computes later; returns the copy's end, if that is needed.

        x is held until the copy is done: computation waits for it two copies later. With `record_stream` instead, the
        allocator would find no free memory within a tight budget, and unmap some.
        """
        if self._stream is None:
            target.copy_(source, non_blocking=True)
            return None
        computing = torch.cuda.current_stream(x.device)
        self._stream.wait_stream(computing)
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        copied = self._stream.record_event()
        self._moving.append((x, copied))
        if len(self._moving) > MOVING:
            computing.wait_event(self._moving[0][1])
            self._moving.popleft()
        return copied

    def _write(self, state: State, rows: Tensor, computed: torch.cuda.Event | None) -> None:
        assert self._file is not None
        if computed is not None:
            computed.synchronize()
        staged = _bytes_of(self._staging, 0, rows)
        self._copy(staged, rows)
        self._file.write_from(staged, state.disk).result()

    def _read(self, state: State, rows: Tensor, made: torch.cuda.Event | None) -> None:
        assert self._file is not None
        staged = _bytes_of(self._staging, 0, rows)
        self._file.read_into(staged, state.disk).result()
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


def _bytes_of(buffer: Tensor, offset: int, rows: Tensor) -> Tensor:
    """Bytes of a buffer in the shape of some rows."""
    return buffer[offset : offset + rows.nbytes].view(rows.dtype).view(rows.shape)

"""DiskFile: byte ranges of a file, read into and written from CPU tensors by threads, past the page cache."""

import errno
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from genwright.errors import UserError

ALIGNMENT = max(4096, mmap.PAGESIZE)  # of offsets, sizes and addresses in direct transfers
PIECE = 4 << 20  # a larger request is split, so that several threads serve it
THREADS = 8  # transfers in flight

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def round_up(size: int, multiple: int = ALIGNMENT) -> int:
    return -(-size // multiple) * multiple


class TransferThreads(ThreadPoolExecutor):
    """Threads that read and write, each with an aligned buffer for bytes that cannot be transferred directly."""

    def __init__(self) -> None:
        super().__init__(THREADS, "offload")
        self._own = threading.local()

    def buffer(self, size: int) -> Bytes:
        """The calling thread's buffer of at most PIECE bytes."""
        if not hasattr(self._own, "buffer"):
            self._own.buffer = np.frombuffer(mmap.mmap(-1, PIECE), np.uint8)
        found: Bytes = self._own.buffer[:size]
        return found


class DiskFile:
    """A preallocated file in an offload folder, which is its owner and closes it.

    Requests run in no order: wait for a write before you read what it wrote. Whole blocks go directly
    between the disk and the tensor if its address and the offset have the same remainder by ALIGNMENT, and over a
    thread's own aligned buffer otherwise. On a file system without direct transfers, pages are evicted after use.
    """

    def __init__(self, path: Path, size: int, buffered: int, owner: object, threads: TransferThreads) -> None:
        self.path, self.size = path, size
        self._buffered, self._owner, self._threads = buffered, owner, threads
        self._direct = _open_direct(path)

    @property
    def descriptors(self) -> list[int]:
        return [self._buffered] if self._direct is None else [self._buffered, self._direct]

    def read_into(self, tensor: torch.Tensor, offset: int = 0) -> Future[None]:
        """Fill a contiguous CPU tensor; the future's result raises a UserError if the disk fails."""
        return self._start(self._read, "read", tensor, offset)

    def write_from(self, tensor: torch.Tensor, offset: int = 0) -> Future[None]:
        """Write a contiguous CPU tensor, which must not change until the future is done."""
        return self._start(self._write, "written", tensor, offset)

    def _start(
        self, transfer: Callable[[Bytes, int], None], verb: str, tensor: torch.Tensor, offset: int
    ) -> Future[None]:
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise ValueError("The tensor must be contiguous and in CPU memory.")
        end = offset + tensor.nbytes
        if not 0 <= offset <= end <= self.size:
            raise ValueError(f"Bytes {offset} to {end} are not within the file's {self.size}.")
        data = tensor.detach().reshape(-1).view(torch.uint8).numpy()

        def piece(start: int, stop: int) -> None:
            try:
                transfer(data[start - offset : stop - offset], start)
            except OSError as error:
                raise UserError(f"Offload file {self.path} cannot be {verb}: {error.strerror}.") from error

        bounds = [offset, *range(round_up(offset + 1, PIECE), end, PIECE), end]
        return _together([self._threads.submit(piece, *each) for each in pairwise(bounds)])

    def _read(self, data: Bytes, offset: int) -> None:
        if self._direct is None:
            _transfer(os.preadv, self._buffered, data, offset)
            os.posix_fadvise(self._buffered, offset, len(data), os.POSIX_FADV_DONTNEED)
            return
        start, stop = _whole_blocks(data, offset)
        if data[start:].ctypes.data % ALIGNMENT:
            start = stop = 0  # read nothing in place
        _transfer(os.preadv, self._direct, data[start:stop], offset + start)
        for part, place in ((data[:start], offset), (data[stop:], offset + stop)):
            if len(part):
                skip = place % ALIGNMENT
                blocks = self._threads.buffer(round_up(skip + len(part)))
                _transfer(os.preadv, self._direct, blocks, place - skip)
                np.copyto(part, blocks[skip : skip + len(part)])  # which releases the interpreter's lock

    def _write(self, data: Bytes, offset: int) -> None:
        if self._direct is None:
            _transfer(os.pwritev, self._buffered, data, offset)
            os.fdatasync(self._buffered)  # only clean pages can be evicted
            os.posix_fadvise(self._buffered, offset, len(data), os.POSIX_FADV_DONTNEED)
            return
        start, stop = _whole_blocks(data, offset)
        # Parts of blocks go through the page cache, where the kernel puts together what several threads write to one
        # block; it writes them back before it reads the block directly.
        _transfer(os.pwritev, self._buffered, data[:start], offset)
        _transfer(os.pwritev, self._buffered, data[stop:], offset + stop)
        whole = data[start:stop]
        if whole.ctypes.data % ALIGNMENT:
            whole = self._threads.buffer(len(whole))
            np.copyto(whole, data[start:stop])
        _transfer(os.pwritev, self._direct, whole, offset + start)


def _open_direct(path: Path) -> int | None:
    """Open a file for direct transfers, or return None if its file system has none or wants a larger alignment."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    except OSError:
        return None
    try:
        os.preadv(descriptor, [mmap.mmap(-1, ALIGNMENT)], 0)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _whole_blocks(data: Bytes, offset: int) -> tuple[int, int]:
    """Where the whole blocks begin and end within the data of an offset."""
    start = min(-offset % ALIGNMENT, len(data))
    return start, start + (len(data) - start) // ALIGNMENT * ALIGNMENT


def _transfer(call: Callable[..., int], descriptor: int, data: Bytes, offset: int) -> None:
    """Call preadv or pwritev until all bytes are transferred."""
    done = 0
    while done < len(data):
        count = call(descriptor, [data[done:]], offset + done)
        if not count:
            raise OSError(errno.EIO, "the file ends early")
        done += count


def _together(parts: list[Future[None]]) -> Future[None]:
    """A future that is done when all parts are, with the first of their errors."""
    whole: Future[None] = Future()
    whole.set_running_or_notify_cancel()  # not to be cancelled: a part may be in flight
    left, lock = len(parts), threading.Lock()

    def finish(_: Future[None]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        errors = (
            UserError("The offload folder was closed.") if each.cancelled() else each.exception() for each in parts
        )
        if error := next(filter(None, errors), None):
            whole.set_exception(error)
        else:
            whole.set_result(None)

    for part in parts:
        part.add_done_callback(finish)
    return whole

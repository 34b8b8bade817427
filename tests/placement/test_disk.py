"""Transfers between disk and tensors give the bytes that a plain copy in memory gives."""

import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from genwright.errors import UserError
from genwright.placement import disk
from genwright.placement.disk import ALIGNMENT, DiskFile, TransferThreads
from genwright.placement.host_memory import HostMemory
from genwright.placement.offload_folder import OffloadFolder

PIECE = 1 << 16  # small, so that small requests are split
SIZE = 4 * PIECE + 12345
MEMORY = HostMemory(pin=False)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PIECE", PIECE)


@pytest.fixture(params=["direct", "buffered"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OffloadFolder]:
    if request.param == "buffered":
        monkeypatch.setattr(disk, "_open_direct", lambda path: None)
    made = OffloadFolder(tmp_path, 3 * SIZE)
    yield made
    made.close()


def noise(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


@pytest.mark.parametrize("offset", [0, 1, 511, ALIGNMENT, PIECE - 1, PIECE])
@pytest.mark.parametrize("size", [0, 1, ALIGNMENT - 1, ALIGNMENT, 2 * PIECE + 1])
@pytest.mark.parametrize("shift", [0, 64, 511])
def test_any_range_of_any_memory(folder: OffloadFolder, offset: int, size: int, shift: int) -> None:
    file, whole = folder.create("weights", SIZE), noise(SIZE)
    file.write_from(whole).result()
    part = MEMORY.empty(shift + size)[shift:]
    part.copy_(noise(size))
    file.write_from(part, offset).result()
    whole[offset : offset + size] = part
    read = MEMORY.empty(shift + size + 1)
    read.fill_(7)
    file.read_into(read[shift:-1], offset).result()
    assert torch.equal(read[shift:-1], part)
    assert read[-1] == 7, "a read went beyond its tensor"
    everything = torch.empty(SIZE, dtype=torch.uint8)
    file.read_into(everything).result()
    assert torch.equal(everything, whole), "a write changed its neighbours"


def test_a_new_file_is_zero(folder: OffloadFolder) -> None:
    read = noise(SIZE)
    folder.create("cache", SIZE).read_into(read).result()
    assert not read.any()


def test_concurrent_requests(folder: OffloadFolder) -> None:
    """Neighbouring ranges that share blocks are written at once, while another file is read."""
    rng = random.Random(0)
    first, second = folder.create("first", SIZE), folder.create("second", SIZE)
    still, whole = noise(SIZE), noise(SIZE)
    second.write_from(still).result()
    for _ in range(3):
        whole.copy_(noise(SIZE))
        bounds = [0, *sorted(rng.sample(range(SIZE), 200)), SIZE]
        ranges = list(pairwise(bounds))
        rng.shuffle(ranges)
        copies = [torch.empty(stop - start, dtype=torch.uint8) for start, stop in ranges]
        waiting = []
        for copy, (start, stop) in zip(copies, ranges, strict=True):
            waiting += [first.write_from(whole[start:stop], start), second.read_into(copy, start)]
        for future in waiting:
            future.result()
        for copy, (start, stop) in zip(copies, ranges, strict=True):
            assert torch.equal(copy, still[start:stop])
        waiting = [first.read_into(copy, start) for copy, (start, _) in zip(copies, ranges, strict=True)]
        for future, copy, (start, stop) in zip(waiting, copies, ranges, strict=True):
            future.result()
            assert torch.equal(copy, whole[start:stop])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_every_dtype(folder: OffloadFolder, dtype: torch.dtype) -> None:
    file, tensor = folder.create("cache", SIZE), noise(3 * 40).reshape(3, 40).bool().to(dtype)
    file.write_from(tensor, 24).result()
    read = torch.empty_like(tensor)
    file.read_into(read, 24).result()
    assert torch.equal(read.view(torch.uint8), tensor.view(torch.uint8))
    scalar = torch.empty((), dtype=dtype)
    file.read_into(scalar, 24).result()
    assert scalar.reshape(1).view(torch.uint8).tolist() == tensor.reshape(-1)[:1].view(torch.uint8).tolist()


def test_direct_transfers_leave_the_page_cache_empty(tmp_path: Path) -> None:
    """What is read again comes from the disk again, or the rates that we measure would be those of memory."""
    folder = OffloadFolder(tmp_path, SIZE)
    file = folder.create("weights", SIZE)
    if len(file.descriptors) == 1:
        pytest.skip("the file system has no direct transfers")
    file.write_from(MEMORY.empty(2 * PIECE)).result()
    file.read_into(MEMORY.empty(2 * PIECE)).result()
    with pytest.raises(BlockingIOError):  # RWF_NOWAIT: only what is in memory
        os.preadv(file.descriptors[0], [bytearray(ALIGNMENT)], PIECE, os.RWF_NOWAIT)
    folder.close()


def test_wrong_requests_are_refused(folder: OffloadFolder) -> None:
    file = folder.create("weights", ALIGNMENT)
    with pytest.raises(ValueError, match="are not within the file's"):
        file.read_into(noise(ALIGNMENT), 1)
    with pytest.raises(ValueError, match="are not within"):
        file.write_from(noise(1), -1)
    with pytest.raises(ValueError, match="must be contiguous"):
        file.read_into(noise(4).reshape(2, 2).t())


def test_errors_of_the_disk_reach_who_waits(folder: OffloadFolder) -> None:
    file = folder.create("weights", SIZE)
    os.ftruncate(file.descriptors[0], PIECE)
    future = file.read_into(noise(SIZE))
    with pytest.raises(UserError, match=r"weights cannot be read: the file ends early\.$"):
        future.result()
    file.read_into(noise(PIECE)).result()  # and nothing else is lost


def test_a_disk_that_is_full_while_writing() -> None:
    path = Path("/dev/full")
    with TransferThreads() as threads, path.open("r+b", buffering=0) as device:
        file = DiskFile(path, SIZE, device.fileno(), None, threads)
        with pytest.raises(UserError, match=r"^Offload file /dev/full cannot be written: No space left on device\.$"):
            file.write_from(noise(SIZE)).result()

"""Compare reads of an offload file with the disk's sequential rate: `python -m benchmarks.disk [FOLDER]`.

Both read the same bytes directly, past the page cache, in turns. The disk's rate is the higher one of two plain loops:
large reads one after the other, as `dd iflag=direct` does, and the same by several threads at once. Ours reads ranges
of a block's size, at any offset, into memory that is aligned for direct transfers (as pinned memory is) or not. All
memory has been touched before.
"""

import argparse
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from genwright.placement.disk import DiskFile, aligned_empty
from genwright.placement.offload_folder import OffloadFolder

READ = 16 << 20  # of the plain loops
AHEAD = 2  # blocks that are being read at a time


def sequential(file: DiskFile, size: int, buffers: list[mmap.mmap]) -> None:
    def read(each: int) -> None:
        for offset in range(each * READ, size, len(buffers) * READ):
            os.preadv(file.descriptors[-1], [buffers[each]], offset)

    with ThreadPoolExecutor(len(buffers)) as pool:
        list(pool.map(read, range(len(buffers))))


def ours(file: DiskFile, size: int, buffers: list[torch.Tensor], shift: int) -> None:
    def blocks() -> Iterator[torch.Tensor]:
        done, count = 0, 0
        while done < size:
            yield (block := buffers[count % AHEAD][: size - done])
            done, count = done + len(block), count + 1

    waiting, offset = [], shift
    for block in blocks():
        if len(waiting) == AHEAD:
            waiting.pop(0).result()
        waiting.append(file.read_into(block, offset))
        offset += len(block)
    for future in waiting:
        future.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="on the disk to measure; the cache folder if not given")
    parser.add_argument("--gib", type=float, default=1.0, help="read each time")
    parser.add_argument("--block", type=int, default=100 << 20, help="bytes of a block's weights")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    size = int(options.gib * (1 << 30)) // READ * READ
    folder = OffloadFolder(options.folder, size + READ)
    file = folder.create("weights", size + READ)
    for offset in range(0, size + READ, READ):
        file.write_from(torch.randint(0, 256, (READ,), dtype=torch.uint8), offset).result()
    print(f"{size / 1e9:.1f} GB, blocks of {options.block / 1e6:.0f} MB, ", end="")
    print("direct" if len(file.descriptors) == 2 else "buffered (this file system has no direct transfers)")
    memory = [aligned_empty(options.block + 64).fill_(1) for _ in range(AHEAD)]
    aligned, unaligned = [each[:-64] for each in memory], [each[64:] for each in memory]
    buffers = [mmap.mmap(-1, READ) for _ in range(8)]
    for buffer in buffers:
        buffer.write(bytes(READ))
    plain = {f"plain loop, {many} in flight": partial(sequential, file, size, buffers[:many]) for many in (1, 8)}
    mine = {
        "aligned memory": partial(ours, file, size, aligned, 0),
        "unaligned memory": partial(ours, file, size, unaligned, 0),
        "unaligned offsets": partial(ours, file, size, aligned, 1000),
    }
    ways: dict[str, Callable[[], None]] = {**plain, **mine}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds):
        order = list(ways) if number % 2 else list(ways)[::-1]
        for name in order:
            started = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - started)
    rates = {name: size / statistics.median(times) for name, times in seconds.items()}
    limit = max(rates[name] for name in plain)
    for name, rate in rates.items():
        print(f"{name:26} {rate / 1e9:6.2f} GB/s {rate / limit:5.0%}")
    folder.close()


if __name__ == "__main__":
    main()

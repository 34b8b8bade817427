"""Compare what a model reads from disk with the disk's sequential rate: `python -m benchmarks.disk [FOLDER]`.

Everything is read directly, past the page cache, and in turns, because a shared disk's rate changes. The disk's rate is
the higher one of two plain loops over the same files: large reads one after the other, as `dd iflag=direct` does, and
the same by several threads at once. Compared with it are requests of a block's size, to memory that is aligned for
direct transfers or not, and the decoding of a model whose blocks are all on disk, at the time that its steps take.
"""

import argparse
import mmap
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from genwright import LLM, SamplingParams
from genwright.placement.disk import DiskFile
from genwright.placement.host_memory import HostMemory
from genwright.placement.offload_folder import OffloadFolder
from genwright.placement.tiers import Tier

READ = 4 << 20  # of the plain loops, by each thread
AHEAD = 2  # blocks that are being read at a time
Work = Callable[[], int]  # returns the bytes that it read


def sequential(files: Sequence[DiskFile], buffers: list[mmap.mmap]) -> int:
    """Read files to their ends, up to the last READ bytes."""
    places = [(file.descriptors[-1], offset) for file in files for offset in range(0, file.size - READ + 1, READ)]

    def read(each: int) -> None:
        for descriptor, offset in places[each :: len(buffers)]:
            os.preadv(descriptor, [buffers[each]], offset)

    with ThreadPoolExecutor(len(buffers)) as pool:
        list(pool.map(read, range(len(buffers))))
    return READ * len(places)


def by_requests(file: DiskFile, buffers: list[torch.Tensor], first: int) -> int:
    """Read a file's blocks in order, into each buffer in turn."""
    size, waiting = len(buffers[0]), list[Future[None]]()
    offsets = range(first, file.size - size + 1, size)
    for count, offset in enumerate(offsets):
        if count >= AHEAD:
            waiting[count - AHEAD].result()
        waiting.append(file.read_into(buffers[count % AHEAD], offset))
    for future in waiting:
        future.result()
    return size * len(offsets)


def decode(llm: LLM, tokens: int) -> int:
    """Generate tokens for one short prompt."""
    moved = llm.engine.executor.tiers.use.moved  # type: ignore[attr-defined]
    before = moved[Tier.DISK, Tier.GPU]
    llm.generate([[1, 2, 3]], SamplingParams(max_new_tokens=tokens, ignore_eos=True))
    return int(moved[Tier.DISK, Tier.GPU] - before)


def compare(files: Sequence[DiskFile], ours: Mapping[str, Work], rounds: int) -> None:
    """Measure all in turns, and print the median rates."""
    buffers = [mmap.mmap(-1, READ) for _ in range(8)]
    for buffer in buffers:
        buffer.write(bytes(READ))
    plain = {f"plain loop, {many} in flight": partial(sequential, files, buffers[:many]) for many in (1, 8)}
    ways: dict[str, Work] = {**plain, **ours}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            count = ways[name]()
            rates[name].append(count / (time.perf_counter() - started))
    limit = max(statistics.median(rates[name]) for name in plain)
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"{name:26} {rate / 1e9:6.2f} GB/s {rate / limit:5.0%}", flush=True)


def compare_requests(folder: OffloadFolder, size: int, block: int, rounds: int) -> None:
    file, values = folder.create("weights", size), torch.randint(0, 256, (block,), dtype=torch.uint8)
    for offset in range(0, size - block, block):
        file.write_from(values, offset).result()
    print(f"Requests of {block / 1e6:.0f} MB, {'direct' if len(file.descriptors) == 2 else 'buffered'}")
    memory = [HostMemory(pin=False).empty(block + 64).fill_(1) for _ in range(AHEAD)]
    aligned, unaligned = [each[:-64] for each in memory], [each[64:] for each in memory]
    requests = {
        "aligned memory": partial(by_requests, file, aligned, 0),
        "unaligned memory": partial(by_requests, file, unaligned, 0),
        "unaligned offsets": partial(by_requests, file, aligned, 1000),
    }
    compare([file], requests, rounds)


def compare_decoding(llm: LLM, tokens: int, rounds: int) -> None:
    files = [weights.file for weights in llm.model.blocks]  # type: ignore[attr-defined]
    print(f"A model with {sum(file.size for file in files) / 1e9:.1f} GB on disk")
    decode(llm, 1)
    compare(files, {"decoding, batch 1": partial(decode, llm, tokens)}, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="on the disk to measure; the cache folder if not given")
    parser.add_argument("--gib", type=float, default=0.5, help="size of the file that is read by requests")
    parser.add_argument("--block", type=int, default=48 << 20, help="bytes of a request")
    parser.add_argument("--model", default="random:opt-1.3b", help="decoded with all blocks on disk")
    parser.add_argument("--cpu-mem", default="600MB", help="memory of its other weights, its buffers and its cache")
    parser.add_argument("--tokens", type=int, default=4, help="decoded each time")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    size = int(options.gib * (1 << 30))
    folder = OffloadFolder(options.folder, size)
    compare_requests(folder, size, options.block, options.rounds)
    folder.close()
    place = {"offload": "0,0,100,0,100,0", "offload_dir": options.folder, "cpu_mem": options.cpu_mem}
    with LLM(options.model, device="cpu", dtype="bfloat16", max_context=256, **place) as llm:
        compare_decoding(llm, options.tokens, options.rounds)


if __name__ == "__main__":
    main()

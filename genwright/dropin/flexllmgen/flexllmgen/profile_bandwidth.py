"""FlexLLMGen's measurement of copies between GPU memory, CPU memory and disk; without a GPU, of those that are left."""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from flexllmgen.profile_matmul import benchmark_func
from flexllmgen.utils import GB, MB

# (source, destination)
LINKS = [("gpu", "cpu"), ("cpu", "gpu"), ("gpu", "gpu"), ("cpu", "cpu"), ("disk", "cpu"), ("cpu", "disk")]
BATCHES = (1, 128, 512)
_ROWS = 512


def profile_bandwidth(path: str) -> None:
    """Print the bandwidth of each link for three sizes; `path` is the file of the disk's links."""
    file, gpu = Path(path).expanduser(), torch.cuda.is_available()
    file.parent.mkdir(parents=True, exist_ok=True)
    if not gpu:
        print("There is no GPU; its links are left out.\n")
    try:
        for source, destination in LINKS:
            if gpu or "gpu" not in (source, destination):
                for batch in BATCHES:
                    _measure(source, destination, (batch, _ROWS, _ROWS), file)
                print()
    finally:
        file.unlink(missing_ok=True)


def _measure(source: str, destination: str, shape: tuple[int, ...], file: Path) -> None:
    read, write = _place(source, shape, file), _place(destination, shape, file)
    size = float(np.prod(shape))
    cost = np.mean(benchmark_func(lambda: write().copy_(read()), number=5, repeat=3))
    bandwidth = size / cost / GB
    print(f"size: {size / MB:6.2f} MB, {source}-to-{destination} bandwidth: {bandwidth:.3f} GB/s", flush=True)


def _place(name: str, shape: tuple[int, ...], file: Path) -> Callable[[], torch.Tensor]:
    """Bytes in a place; those on disk are mapped anew by each copy."""
    if name == "disk":
        np.lib.format.open_memmap(file, mode="w+", shape=shape, dtype=np.int8)
        return lambda: torch.from_numpy(np.lib.format.open_memmap(file))
    pin = name == "cpu" and torch.cuda.is_available()
    tensor = torch.ones(shape, dtype=torch.int8, device="cuda" if name == "gpu" else "cpu", pin_memory=pin)
    return lambda: tensor


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--offload-path", default="~/flexllmgen_offload_dir/tmp.npy", help="A file on the disk.")
    profile_bandwidth(parser.parse_args().offload_path)

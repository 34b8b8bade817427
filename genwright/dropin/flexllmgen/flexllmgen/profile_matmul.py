"""FlexLLMGen's measurement of square matrix products, on the GPU or, without one, on the CPU."""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

SIZES = {"cuda": (1024, 2048, 4096, 8192), "cpu": (512, 1024, 2048)}
DTYPES = {"cuda": torch.float16, "cpu": torch.float32}


def benchmark_func(func: Callable[[], object], number: int, repeat: int, warmup: int = 3) -> list[float]:
    """Mean seconds of `number` calls, measured `repeat` times after some calls to warm up."""

    def run(calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            func()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - started

    run(warmup)
    return [run(number) / number for _ in range(repeat)]


def bench_matmul() -> None:
    """Print milliseconds and TFLOPS for several sizes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for n in SIZES[device]:
        a, b = (torch.rand(n, n, device=device).to(DTYPES[device]) for _ in range(2))
        cost = np.mean(benchmark_func(partial(torch.matmul, a, b), number=5, repeat=3))
        print(
            f"device: {device}, N: {n}, latency: {cost * 1e3:.2f} ms, TFLOPS: {2 * n**3 / cost / 1e12:.3f}", flush=True
        )
    print()


if __name__ == "__main__":
    bench_matmul()

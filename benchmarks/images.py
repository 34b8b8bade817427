"""Time sampling with the ImageNet-64 UNet (296 M parameters, random weights), relative to the machine's matmul rate.

On a GPU, check that images do not depend on the batch size, then time onestep at batch 256 and heun with 40 steps at
batch 64, end to end (noise, labels, UNet, sampler, uint8 on the host). On a CPU, time a few images.
"""

import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode

from genwright import ImageModel
from genwright.images.model.presets import PRESETS
from genwright.images.model.unet import UNet

# openai/consistency_models in fp16 on an NVIDIA H200, images/s.
ORIGINAL = {"onestep, batch 256": 534.8, "heun 40, batch 64": 6.4}


def main() -> None:
    flops = flops_per_image()
    print(f"UNet: {flops / 1e9:.1f} GFLOP per image and evaluation")
    if not torch.cuda.is_available():
        model = ImageModel("random:imagenet64")
        seconds = timed(lambda: model.sample(4, sampler="onestep", seed=7), repeats=1)
        print(f"CPU ({platform.processor() or platform.machine()}): onestep {4 / seconds:.2f} images/s, float32")
        return
    matmul = matmul_rate()
    print(f"{torch.cuda.get_device_name()}: fp16 matmul {matmul / 1e12:.0f} TFLOP/s measured")
    started = time.perf_counter()
    model = ImageModel("random:imagenet64")
    loaded = time.perf_counter()
    check_batches(model)
    print(
        f"weights in {loaded - started:.1f} s; first images, compiled and captured, and check in {since(loaded):.1f} s"
    )
    print("| what | images/s | original | ratio | TFLOP/s | share of matmul | GB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    row("onestep, batch 256", model, 256, 1, flops, matmul, sampler="onestep", repeats=7)
    row("heun 40, batch 64", model, 64, 79, flops, matmul, sampler="heun", steps=40, repeats=3)


def row(
    what: str,
    model: ImageModel,
    batch: int,
    evaluations: int,
    flops: float,
    matmul: float,
    *,
    repeats: int,
    sampler: str,
    steps: int = 40,
) -> None:
    sample = lambda: model.sample(batch, sampler=sampler, steps=steps, seed=7, batch_size=batch)  # noqa: E731
    seconds = timed(sample, repeats)
    rate = batch / seconds
    used = rate * evaluations * flops
    memory = torch.cuda.max_memory_reserved() / 1e9
    print(
        f"| {what} | {rate:.1f} | {ORIGINAL[what]} | {rate / ORIGINAL[what]:.2f} | {used / 1e12:.0f} "
        f"| {used / matmul:.0%} | {memory:.1f} |"
    )


def check_batches(model: ImageModel) -> None:
    """Check that sample 17 of seed 7 has the same bytes with batch sizes 1, 4 and 16."""
    images = {model.sample(18, sampler="onestep", seed=7, batch_size=size).array[17].tobytes() for size in (1, 4, 16)}
    assert len(images) == 1, "sample 17 depends on the batch size"


def flops_per_image() -> float:
    """FLOPs of one evaluation's convolutions, matmuls and attention, two per multiply-add."""
    counter = FlopCounterMode(display=False)
    with torch.device("meta"), torch.no_grad(), counter:
        UNet(PRESETS["imagenet64"])(torch.empty(1, 3, 64, 64), torch.empty(1), torch.empty(1, dtype=torch.long))
    return counter.get_total_flops()


def matmul_rate(size: int = 8192) -> float:
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.float16)
    return 2 * size**3 / timed(lambda: a @ b, repeats=20)


def timed(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of a call, including the wait for the device, after one warm-up call."""
    seconds = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(since(started))
    return statistics.median(seconds[1:])


def since(started: float) -> float:
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

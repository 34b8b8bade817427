"""Time a model with random weights that is placed over GPU memory, CPU memory and disk, beside the bus's own rate.

`python benchmarks/offload.py` is OPT-13B in float16 with all blocks in CPU memory, 128 prompts of 256 tokens and 32 new
tokens each; `--quant int4`, `--model random:opt-30b`, `--gpu-mem 16GiB` and others change the case. Several batch sizes
are measured one after the other, on the model as it was loaded for the first.
"""

import argparse
import json
import random
import time

import torch

from genwright import LLM, SamplingParams
from genwright.placement.host_memory import HostMemory
from genwright.placement.tiers import Tier
from genwright.text.engine.streamed import StreamedExecutor

SIZE = 1 << 29  # bytes of a copy over the bus
COPIES = 8


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:opt-13b")
    parser.add_argument("--offload", default="0,100,100,0,100,0,micro_batch=32,micro_batches=4")
    parser.add_argument("--quant")
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[128])
    parser.add_argument("--prompt-length", type=int, default=256)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--gpu-mem")
    parser.add_argument("--cpu-mem")
    parser.add_argument("--offload-dir")
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def bus_rate(device: torch.device) -> float:
    """Bytes per second from pinned CPU memory to the device; without a GPU, of a copy in memory."""
    memory, on_gpu = HostMemory(pin=True), device.type == "cuda"
    source, target = memory.empty(SIZE), torch.empty(SIZE, dtype=torch.uint8, device=device)
    times = []
    for _ in range(COPIES):
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        if on_gpu:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    del target
    if on_gpu:
        torch.cuda.empty_cache()
    return SIZE / min(times)


def prompts(count: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(vocab) for _ in range(length)] for _ in range(count)]


def main() -> None:
    given = arguments()
    device = torch.device("cuda" if given.device == "auto" and torch.cuda.is_available() else "cpu")
    rate, started = bus_rate(device), time.perf_counter()
    names = ("offload", "quant", "kv", "dtype", "gpu_mem", "cpu_mem", "offload_dir", "device")
    settings = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    length = given.prompt_length + given.max_new_tokens
    llm = LLM(given.model, tell=print, max_context=length, **settings)
    print(f"loaded in {time.perf_counter() - started:.1f} s")
    for batch in given.batch:
        measure(llm, given, batch, rate)


def measure(llm: LLM, given: argparse.Namespace, batch: int, rate: float) -> None:
    executor, vocab = llm.engine.executor, llm.model.cfg.vocab_size
    if not isinstance(executor, StreamedExecutor):
        raise SystemExit("The model fits and is resident; pass a smaller --gpu-mem.")
    for new in (3, given.max_new_tokens):  # the first compiles kernels
        params = SamplingParams(max_new_tokens=new, ignore_eos=True)
        ids, meter, steps = prompts(batch, given.prompt_length, vocab, new), llm.meter(), llm.engine.steps
        results = llm.generate(ids, params)
    assert meter is not None
    report = meter.report(results)
    timing = report.measured
    assert timing is not None
    steps = llm.engine.steps - steps
    crossed = report.moved.get(f"{Tier.CPU.value} to {Tier.GPU.value}", 0) / steps
    limit = batch / (crossed / rate) if crossed else float("inf")
    found = {
        "model": given.model, "quant": given.quant, "policy": str(executor.policy), "batch": batch,
        "decode tok/s": timing.decode_rate, "total tok/s": timing.total_rate, "prefill s": timing.prefill_seconds,
        "steps": steps, "bus GB/s": rate / 1e9, "GB over the bus per step": crossed / 1e9,
        "decode limit tok/s": limit, "share of the limit": timing.decode_rate / limit,
        "peak GB": {tier: count / 1e9 for tier, count in report.peak.items()},
    }  # fmt: skip
    print("\n".join(report.lines()))
    print(json.dumps(found, indent=1), flush=True)


if __name__ == "__main__":
    main()

"""The time to the first tokens of long prompts in every format of weights, beside bf16: `python benchmarks/prefill.py`.

Formats run one after the other, and then all once more, because a machine's speed drifts and a process's first calls
can be slow. The time of a batch is that to the last prompt's first token. The default is Llama-3.1-8B with random
weights on a GPU, and a few layers of a 1.1 B shape on a CPU.
"""

import argparse
import gc
import random
import statistics
import time
from dataclasses import replace

import torch

from genwright import LLM, SamplingParams
from genwright.device import pick_device
from genwright.text.engine.request import Piece
from genwright.text.settings import EngineConfig

MODELS = {"cuda": "random:llama-3.1-8b", "cpu": "random:tinyllama-1.1b,layers=4"}
SERIES, WARM_UP, CALLS = 2, 2, 10


def first_tokens(llm: LLM, batch: int, length: int) -> list[float]:
    """Seconds to the last first token of each call, after those that compile and warm up; fewer calls of batches."""
    found = []
    for number in range(WARM_UP + CALLS if batch == 1 else 1 + -(-CALLS // batch)):
        draw, moments = random.Random(number), dict[int, float]()
        prompts = [[draw.randrange(llm.model.cfg.vocab_size) for _ in range(length)] for _ in range(batch)]

        def note(piece: Piece, moments: dict[int, float] = moments) -> None:
            moments.setdefault(piece.index, time.perf_counter())

        started = time.perf_counter()
        llm.generate(prompts, SamplingParams(max_new_tokens=2, ignore_eos=True, seed=number), note)
        found.append(max(moments.values()) - started)
    return found[WARM_UP if batch == 1 else 1 :]


def main() -> None:
    device = pick_device("auto")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODELS[device.type])
    parser.add_argument("--prompt-length", type=int, default=2048 if device.type == "cuda" else 256)
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    given = parser.parse_args()
    plain = EngineConfig(dtype="bfloat16", max_context=given.prompt_length + 2)
    cases = {"bf16": plain} | {name: replace(plain, quant=name) for name in ("int8", "int4", "int4:asym", "fp8")}
    if device.type == "cuda":
        cases["fp8, rounded inputs"] = replace(plain, quant="fp8", fp8_inputs=True)
    print(f"{given.model}, {given.prompt_length} tokens, {device}")
    print(f"{'weights':22}{'batch':>6}{'median':>12}{'fastest':>12}{'slowest':>12}{'tokens/s':>10}  of bf16's speed")
    for _ in range(SERIES):
        base: dict[int, float] = {}
        for name, config in cases.items():
            with LLM(given.model, config) as llm:
                for batch in given.batch:
                    times = first_tokens(llm, batch, given.prompt_length)
                    median = statistics.median(times)
                    base.setdefault(batch, median)
                    spread = "".join(f"{seconds * 1e3:9.1f} ms" for seconds in (median, min(times), max(times)))
                    rate, ratio = batch * given.prompt_length / median, base[batch] / median
                    print(f"{name:22}{batch:6}{spread}{rate:10,.0f}  {ratio:.2f}", flush=True)
            del llm
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

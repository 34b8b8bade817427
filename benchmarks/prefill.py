"""The time to the first token of a long prompt in every format of weights, beside bf16: `python benchmarks/prefill.py`.

Formats run one after the other, and then all once more, because a machine's speed drifts and a process's first calls
can be slow. The default is Llama-3.1-8B with random weights on a GPU, and a few layers of a 1.1 B shape on a CPU.
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


def first_tokens(model: str, config: EngineConfig, length: int) -> list[float]:
    """Seconds to the first token of each call, after those that compile and warm up."""
    found = []
    with LLM(model, config) as llm:
        for number in range(WARM_UP + CALLS):
            draw, moments = random.Random(number), list[float]()
            prompt = [draw.randrange(llm.model.cfg.vocab_size) for _ in range(length)]

            def note(piece: Piece, moments: list[float] = moments) -> None:
                moments.append(time.perf_counter())

            started = time.perf_counter()
            llm.generate([prompt], SamplingParams(max_new_tokens=2, ignore_eos=True, seed=number), note)
            found.append(moments[0] - started)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found[WARM_UP:]


def main() -> None:
    device = pick_device("auto")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODELS[device.type])
    parser.add_argument("--prompt-length", type=int, default=2048 if device.type == "cuda" else 256)
    given = parser.parse_args()
    plain = EngineConfig(dtype="bfloat16", max_context=given.prompt_length + 2)
    cases = {"bf16": plain} | {name: replace(plain, quant=name) for name in ("int8", "int4", "int4:asym", "fp8")}
    if device.type == "cuda":
        cases["fp8, rounded inputs"] = replace(plain, quant="fp8", fp8_inputs=True)
    print(f"{given.model}, {given.prompt_length} tokens, {device}")
    print(f"{'weights':22}{'median':>12}{'fastest':>12}{'slowest':>12}  of bf16's speed")
    for _ in range(SERIES):
        base = 0.0
        for name, config in cases.items():
            times = first_tokens(given.model, config, given.prompt_length)
            median = statistics.median(times)
            base = base or median
            spread = "".join(f"{seconds * 1e3:9.1f} ms" for seconds in (median, min(times), max(times)))
            print(f"{name:22}{spread}  {base / median:.2f}", flush=True)


if __name__ == "__main__":
    main()

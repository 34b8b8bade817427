"""Compare the decoding speed of this tree and another checkout: `python benchmarks/before_after.py OTHER [CASE ...]`.

The two run in turn, each time in a new process; the table shows the ratio of medians.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 4
# model, quant, device, new tokens
CASES = {
    "7b-bf16": ("random:llama-2-7b", None, "cuda", 200),
    "7b-int8": ("random:llama-2-7b", "int8", "cuda", 200),
    "7b-int4": ("random:llama-2-7b", "int4", "cuda", 200),
    "mixtral-int8": ("random:mixtral-8x7b,layers=16", "int8", "cuda", 200),
    "smollm2": ("smollm2", None, "cpu", 96),
    "smollm2-keep": ("smollm2", "keep", "cpu", 96),
}


def measure(model: str, quant: str | None, device: str, new_tokens: int) -> dict[str, float]:
    """Seconds from the start of the process to the first token, and the median decoding rate in tokens/s."""
    started = time.perf_counter()
    from genwright import LLM, SamplingParams

    llm = LLM(model, device=device, quant=quant, max_context=1024)
    params = SamplingParams(temperature=0.8, top_k=200, max_new_tokens=new_tokens, ignore_eos=True, seed=1)
    prompt = [1, 15043, 29892, 590, 1024, 338]
    next(iter(llm.stream(prompt, params)))
    first = time.perf_counter() - started
    rates = []
    for _ in range(5):
        times: list[float] = []
        llm.generate([prompt], params, callback=lambda piece, times=times: times.append(time.perf_counter()))
        rates.append((len(times) - 1) / (times[-1] - times[0]))
    return {"first": first, "rate": statistics.median(rates)}


def main() -> None:
    if sys.argv[1] == "--measure":
        print(json.dumps(measure(*CASES[sys.argv[2]])))
        return
    other, *names = sys.argv[1:]
    trees = {"before": other, "after": str(Path(__file__).parents[1])}
    print(f"{'case':14}{'before':>10}{'after':>10}{'ratio':>8}   first token before, after")
    for name in names or CASES:
        found: dict[str, list[dict[str, float]]] = {which: [] for which in trees}
        for number in range(ROUNDS):
            # Reversed every other time, because a machine's speed drifts.
            for which, tree in list(trees.items())[:: 1 if number % 2 == 0 else -1]:
                command = [sys.executable, __file__, "--measure", name]
                run = subprocess.run(
                    command, env={**os.environ, "PYTHONPATH": tree}, stdout=subprocess.PIPE, text=True, check=True
                )
                found[which].append(json.loads(run.stdout.splitlines()[-1]))
        rates, firsts = (
            [statistics.median(result[key] for result in found[which]) for which in trees] for key in ("rate", "first")
        )
        times = ", ".join(f"{seconds:.2f} s" for seconds in firsts)
        print(f"{name:14}{rates[0]:10.1f}{rates[1]:10.1f}{rates[1] / rates[0]:8.3f}   {times}", flush=True)


if __name__ == "__main__":
    main()

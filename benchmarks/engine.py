"""Time start-up and batching with the default model; `genwright bench smollm2 --peers` compares decoding with peers.

Run alone on the machine: `python benchmarks/engine.py`.
"""

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from genwright import LLM, SamplingParams

ROUNDS = 3
PROMPT = "Once upon a time, in a village by the sea, there lived an old fisherman who"
REQUESTS = [f"Write a story about the number {n}." for n in range(32)]


def seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def start_up() -> tuple[float, float]:
    """Seconds from the start of the command to the end of `--help`, and to the first character of an answer."""
    command = [sys.executable, "-m", "genwright"]
    helps = [seconds(lambda: subprocess.run([*command, "--help"], capture_output=True)) for _ in range(ROUNDS)]
    firsts = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        with subprocess.Popen(
            [*command, "generate", PROMPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            firsts.append(time.perf_counter() - started)
            process.kill()
    return statistics.median(helps), statistics.median(firsts)


def batching(llm: LLM) -> tuple[float, float]:
    """Seconds for 32 requests, one by one and in one batch."""
    params = SamplingParams(max_new_tokens=32, ignore_eos=True)
    alone = seconds(lambda: [llm.generate(f"A: {request}", params) for request in REQUESTS])
    together = seconds(lambda: llm.generate([f"B: {request}" for request in REQUESTS], params))
    return alone, together


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    help_, first = start_up()
    print(f"genwright --help                {help_:6.2f} s")
    print(f"first character of an answer    {first:6.2f} s")
    llm = LLM("smollm2", device="cpu", dtype="float32")
    alone, together = batching(llm)
    print(f"32 requests one by one          {alone:6.1f} s")
    print(f"32 requests together            {together:6.1f} s")
    print(f"together / one by one           {alone / together:6.2f} x faster")


if __name__ == "__main__":
    main()

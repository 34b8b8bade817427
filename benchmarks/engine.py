"""Time start-up and batching with the default model; `genwright bench smollm2 --peers` compares decoding with peers.

Run alone on the machine: `python benchmarks/engine.py`.
"""

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from genwright import LLM, SamplingParams
from genwright.text.catalogue import resolve

START_ROUNDS = 10
PROMPT = "Once upon a time, in a village by the sea, there lived an old fisherman who"
REQUESTS = [f"Write a story about the number {n}." for n in range(32)]


def seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def first_byte(command: list[str]) -> float:
    """Seconds from the start of a command to its first byte of output, or to its end."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        taken = time.perf_counter() - started
        process.kill()
    return taken


def start_up() -> None:
    """Print the first byte of each command, in turns; bytecode is compiled before, as an installation does."""
    ours = [sys.executable, "-m", "genwright"]
    commands = {
        "genwright --help": [*ours, "--help"],
        "import torch": [sys.executable, "-c", "import torch"],
        "first character of an answer": [*ours, "generate", PROMPT],
    }
    if llama := shutil.which("llama-completion"):
        said = ["-p", PROMPT, "-n", "1", "-no-cnv", "--no-display-prompt"]
        commands["the same of llama.cpp"] = [llama, "-m", resolve("smollm2"), *said]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds = [{name: first_byte(command) for name, command in commands.items()} for _ in range(1 + START_ROUNDS)]
    for name in commands:
        print(f"{name:<31} {statistics.median(each[name] for each in rounds[1:]):6.2f} s")


def batching(llm: LLM) -> tuple[float, float]:
    """Seconds for 32 requests, one by one and in one batch."""
    params = SamplingParams(max_new_tokens=32, ignore_eos=True)
    alone = seconds(lambda: [llm.generate(f"A: {request}", params) for request in REQUESTS])
    together = seconds(lambda: llm.generate([f"B: {request}" for request in REQUESTS], params))
    return alone, together


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    start_up()
    llm = LLM("smollm2", device="cpu", dtype="float32")
    alone, together = batching(llm)
    print(f"32 requests one by one          {alone:6.1f} s")
    print(f"32 requests together            {together:6.1f} s")
    print(f"together / one by one           {alone / together:6.2f} x faster")


if __name__ == "__main__":
    main()

"""Compare the speed of this tree and another checkout: `python benchmarks/before_after.py OTHER [CASE ...]`.

The two run in turn, each time in a new process; the table shows the ratio of medians, and the fastest start.
A case with further sampling parameters is also compared with the same calls without them, in turns in the same process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genwright import LLM

ROUNDS, CALLS = 4, 5
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5}


@dataclass(frozen=True)
class Case:
    """What is measured: decoding while all sequences decode or, if `whole`, all tokens of whole calls."""

    model: str
    quant: str | None = None
    device: str = "cuda"
    prompt: tuple[int, int] = (6, 6)  # tokens of the shortest and the longest prompt
    new: int = 200
    batch: int = 1
    whole: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)  # further ones

    def prompts(self, turn: int) -> list[list[int]]:
        """Different tokens at every turn, so that no prefix is in the cache."""
        shortest, longest = self.prompt
        lengths = [shortest + 37 * number % (longest - shortest + 1) for number in range(self.batch)]
        return [
            [100 + (7919 * turn + 104729 * number + 31 * place * place) % 30000 for place in range(length)]
            for number, length in enumerate(lengths)
        ]


_7B, _8B = "random:llama-2-7b", "random:llama-3.1-8b"
CASES = {
    "7b-bf16": Case(_7B),
    "7b-int8": Case(_7B, "int8"),
    "7b-int4": Case(_7B, "int4"),
    "mixtral-int8": Case("random:mixtral-8x7b,layers=16", "int8"),
    "7b-logprobs": Case(_7B, params={"logprobs": 5}),
    "7b-penalties": Case(_7B, params=PENALTIES),
    "8b-batch-64": Case(_8B, prompt=(512, 512), new=64, batch=64),
    "8b-batch-256": Case(_8B, prompt=(512, 512), new=64, batch=256),
    "smollm2": Case("smollm2", device="cpu", new=96),
    "smollm2-keep": Case("smollm2", "keep", device="cpu", new=96),
    "smollm2-32": Case("smollm2", device="cpu", prompt=(16, 256), new=32, batch=32, whole=True),
}


def measure(case: Case) -> dict[str, float]:
    """Seconds from the start of the process to the first token, and the median rate in tokens/s."""
    started = time.perf_counter()
    from genwright import LLM, SamplingParams

    llm = LLM(case.model, device=case.device, quant=case.quant, max_context=1024)
    settings: dict[str, Any] = {
        "temperature": 0.8,
        "top_k": 200,
        "max_new_tokens": case.new,
        "ignore_eos": True,
        "seed": 1,
    }
    contenders = {"plain": SamplingParams(**settings)}
    if case.params:
        contenders["rate"] = SamplingParams(**settings, **case.params)
    next(iter(llm.stream(case.prompts(-1)[0], contenders["plain"])))
    first = time.perf_counter() - started
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-1, CALLS):
        for place, (name, params) in enumerate(contenders.items()):
            found = rate(llm, case, case.prompts(2 * turn + place), params)
            if turn >= 0:  # the turn before warms up
                rates[name].append(found)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return {"first": first, "rate": medians["plain"], **medians}


def rate(llm: "LLM", case: Case, prompts: list[list[int]], params: Any) -> float:
    """Tokens per second of one call."""
    times: list[list[float]] = [[] for _ in prompts]
    if case.batch > 1 and not case.whole:
        llm.generate(prompts, replace(params, max_new_tokens=1))  # so that all decode together in the next call
    started = time.perf_counter()
    llm.generate(prompts, params, lambda piece: times[piece.index].extend([time.perf_counter()] * len(piece.ids)))
    if case.whole:
        return (sum(map(len, prompts)) + sum(map(len, times))) / (time.perf_counter() - started)
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    return sum(begin < moment <= end for each in times for moment in each) / (end - begin)


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(CASES[sys.argv[2]])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="the other checkout's folder")
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"there is no case {min(unknown)}")
    if not (Path(given.other) / "genwright").is_dir():
        parser.error(f"{given.other} is no checkout of Genwright")
    trees = {"before": given.other, "after": str(Path(__file__).parents[1])}
    print(f"{'case':14}{'before':>10}{'after':>10}{'ratio':>8}   first token before, after")
    for name in given.cases or CASES:
        found: dict[str, list[dict[str, float]]] = {which: [] for which in trees}
        for number in range(ROUNDS):
            # Reversed every other time, because a machine's speed drifts.
            for which, tree in list(trees.items())[:: 1 if number % 2 == 0 else -1]:
                command = [sys.executable, __file__, "--measure", name]
                run = subprocess.run(
                    command, env={**os.environ, "PYTHONPATH": tree}, stdout=subprocess.PIPE, text=True, check=True
                )
                found[which].append(json.loads(run.stdout.splitlines()[-1]))
        rates, plain = (
            [statistics.median(result[key] for result in found[which]) for which in trees] for key in ("rate", "plain")
        )
        firsts = [min(result["first"] for result in found[which]) for which in trees]  # the first round compiles
        notes = ", ".join(f"{seconds:.2f} s" for seconds in firsts)
        if CASES[name].params:
            costs = (f"{1 - with_params / without:.1%}" for with_params, without in zip(rates, plain, strict=True))
            notes += f"; slower than without these parameters by {', '.join(costs)}"
        print(f"{name:14}{rates[0]:10.1f}{rates[1]:10.1f}{rates[1] / rates[0]:8.3f}   {notes}", flush=True)


if __name__ == "__main__":
    main()

"""Compare the speed of this tree and another checkout: `python benchmarks/before_after.py OTHER [CASE ...]`.

The two run in turn, each time in a new process that measures all cases, each time in another order. The table has the
ratio of medians, and the fastest start of those processes in which a case was the first.
A case with further sampling parameters is also compared with the same calls without them, in turns in the same process.
"""

import argparse
import gc
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

CALLS = 5
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
    "8b-bf16-16": Case(_8B, prompt=(64, 64), new=64, batch=16),
    "8b-int8-16": Case(_8B, "int8", prompt=(64, 64), new=64, batch=16),
    "8b-int4-16": Case(_8B, "int4", prompt=(64, 64), new=64, batch=16),
    "8b-batch-64": Case(_8B, prompt=(512, 512), new=64, batch=64),
    "8b-batch-256": Case(_8B, prompt=(512, 512), new=64, batch=256),
    "smollm2": Case("smollm2", device="cpu", new=96),
    "smollm2-keep": Case("smollm2", "keep", device="cpu", new=96),
    "smollm2-32": Case("smollm2", device="cpu", prompt=(16, 256), new=32, batch=32, whole=True),
}


def measure(case: Case, started: float) -> dict[str, float]:
    """Seconds until the first token, and the median rate in tokens/s."""
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


def measure_all(names: list[str]) -> None:
    """Print each case's figures; only the first has seconds from the start of the process to its first token."""
    for number, name in enumerate(names):
        found = measure(CASES[name], time.perf_counter())
        if number:
            del found["first"]
        print(json.dumps({"case": name, **found}), flush=True)
        gc.collect()
        if (torch := sys.modules["torch"]).cuda.is_available():
            torch.cuda.empty_cache()


def compare(trees: Mapping[str, str], names: list[str], rounds: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    """The figures of each case by tree."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {name: {which: [] for which in trees} for name in names}
    for number in range(rounds):
        first = number * max(1, len(names) // rounds) % len(names)
        order = names[first:] + names[:first]
        # Reversed every other time, because a machine's speed drifts.
        for which, tree in list(trees.items())[:: 1 if number % 2 == 0 else -1]:
            command, environment = [sys.executable, __file__, "--measure", *order], {**os.environ, "PYTHONPATH": tree}
            run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            for line in run.stdout.splitlines():
                if line.startswith('{"case"'):
                    figures = json.loads(line)
                    found[figures.pop("case")][which].append(figures)
            print(f"round {number + 1} of {rounds}, {which}", file=sys.stderr)
    return found


def report(name: str, found: Mapping[str, list[dict[str, float]]]) -> None:
    """Print a line of the table."""
    rates, plain = (
        [statistics.median(each[key] for each in figures) for figures in found.values()] for key in ("rate", "plain")
    )
    firsts = [min((each["first"] for each in figures if "first" in each), default=None) for figures in found.values()]
    notes = ", ".join("not measured" if seconds is None else f"{seconds:.2f} s" for seconds in firsts)
    if CASES[name].params:
        costs = (f"{1 - with_params / without:.1%}" for with_params, without in zip(rates, plain, strict=True))
        notes += f"; slower than without these parameters by {', '.join(costs)}"
    print(f"{name:14}{rates[0]:10.1f}{rates[1]:10.1f}{rates[1] / rates[0]:8.3f}   {notes}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        measure_all(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", help="the other checkout's folder")
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"there is no case {min(unknown)}")
    if not (Path(given.other) / "genwright").is_dir():
        parser.error(f"{given.other} is no checkout of Genwright")
    trees = {"before": given.other, "after": str(Path(__file__).parents[1])}
    names = list(dict.fromkeys(given.cases or CASES))
    found = compare(trees, names, given.rounds)
    print(f"{'case':14}{'before':>10}{'after':>10}{'ratio':>8}   first token before, after")
    for name in names:
        report(name, found[name])


if __name__ == "__main__":
    main()

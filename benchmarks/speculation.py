"""Speculative decoding with SmolLM2-135M: tokens/s with and without a draft, and the cost of a bad draft.

The contenders run in turn on the same weights with an empty cache, and must give the same tokens; times are medians and
include the prompt. The prompts are five public texts to summarise, with prompt lookup, and a tale to invent, with
prompt lookup (which finds little there) and with a draft model of random weights (which is right by chance only).
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from genwright import LLM, SamplingParams
from genwright.kernels import PAGE
from genwright.text.drafts.draft_model import DraftModel
from genwright.text.drafts.prompt_lookup import PromptLookup
from genwright.text.drafts.proposal_length import StepCost
from genwright.text.drafts.speculation import Draft, Speculation
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.request import Acceptance, Request
from genwright.text.ops.torch_ops import TorchOps

# Openings of public-domain texts: Darwin's Origin of Species, Doyle's Sherlock Holmes, Roosevelt's speech of December
# 1941, Smith's Wealth of Nations, Wells's Time Machine. Nothing was tuned on them.
TEXTS = {path.stem: " ".join(path.read_text().split()) for path in sorted(Path(__file__).parent.glob("texts/*.txt"))}
SUMMARISE = "Summarise this text: {}"
TOKENS = 512  # per step
INVENT = "Invent a long tale about a clockmaker who finds a door in the sky."


@dataclass
class Contender:
    """A way of running the prompt, and its measurements."""

    name: str
    draft: Callable[[], Draft] | None
    seconds: list[float] = field(default_factory=list)
    steps: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)

    def run(self, llm: LLM, prompt: list[int], params: SamplingParams) -> list[int]:
        speculation = Speculation(self.draft(), 5, StepCost.of(llm.model)) if self.draft else None
        given = llm.engine
        engine = Engine(given.executor, 1, TOKENS, llm.max_context, speculation, given.steps_ahead)
        request = Request(prompt, params, seed=0, eos_ids=llm.eos_ids)
        started = time.perf_counter()
        engine.submit(request)
        while engine.busy():
            engine.step()
        self.seconds.append(time.perf_counter() - started)
        self.steps += engine.steps
        self.acceptance.add(request.acceptance)
        return request.output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", default=[*TEXTS, "invent"], help="of benchmarks/texts, or invent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    llm = LLM("smollm2", dtype="float32")
    params = SamplingParams(max_new_tokens=arguments.tokens, temperature=arguments.temperature)
    machine = f"{platform.machine()}, {arguments.threads} threads, {llm.model.device.type}"
    print(f"{machine}, float32, temperature {arguments.temperature}, k up to 5")
    print("| prompt | draft | tokens/s | ratio | steps | tokens | accepted per proposal | by position |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    totals = [0.0, 0.0]  # seconds without and with prompt lookup
    for name in arguments.texts:
        text = INVENT if name == "invent" else SUMMARISE.format(TEXTS[name])
        prompt = llm.encode_chat([{"role": "user", "content": text}])
        lookup = partial(PromptLookup, llm.model.device)
        seconds = compare(llm, name, prompt, "prompt lookup", lookup, arguments.rounds, params)
        if name == "invent":
            compare(llm, name, prompt, "random weights", random_draft(llm), arguments.rounds, params)
        else:
            totals = [total + each for total, each in zip(totals, seconds, strict=True)]
    if totals[1]:
        print(f"The texts together: {totals[0]:.1f} s without, {totals[1]:.1f} s with: {totals[0] / totals[1]:.2f} x")


def compare(
    llm: LLM, what: str, prompt: list[int], name: str, draft: Callable[[], Draft], rounds: int, params: SamplingParams
) -> list[float]:
    """Print and return the median seconds of an answer without and with the draft."""
    contenders = [Contender("none", None), Contender(name, draft)]
    contenders[1].run(llm, prompt, SamplingParams(max_new_tokens=8))  # warms up
    contenders[1] = Contender(name, draft)
    for _ in range(rounds):
        answers = [contender.run(llm, prompt, params) for contender in contenders]
        assert answers[0] == answers[1], "tokens differ with a draft"
    seconds = [statistics.median(each.seconds) for each in contenders]
    for each, median in zip(contenders, seconds, strict=True):
        rates = " ".join(f"{rate:.2f}" for rate in each.acceptance.rates)
        print(
            f"| {what} | {each.name} | {len(answers[0]) / median:.1f} | {seconds[0] / median:.2f} "
            f"| {each.steps // rounds} | {len(answers[0])} | {each.acceptance.mean:.2f} | {rates} |",
            flush=True,
        )
    return seconds


def random_draft(llm: LLM) -> Callable[[], Draft]:
    """A draft model of three random layers with the model's vocabulary."""
    noise = LLM("random:smollm2-135m,layers=3", dtype="float32", max_context=1024).model
    executor = ResidentExecutor(noise, TorchOps(), 1024 // PAGE * 4, 1, TOKENS)
    return lambda: DraftModel(executor, llm.model, TOKENS, 1024)


if __name__ == "__main__":
    main()

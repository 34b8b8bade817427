"""Speculation on the default model (SmolLM2-135M): tokens/s with and without a draft, and what a poor draft costs.

Every contender runs on the same loaded weights with an empty cache, in turns, and gives its median, reading the prompt
included. Counted steps and tokens do not depend on what else the machine does. The prompts: a text to shorten by its
own sentences, and to summarise in other words, both with prompt lookup; a tale to invent, with prompt lookup, which has
little to look up there, and with a draft model of random weights, which is right by chance only.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from genwright import LLM, SamplingParams
from genwright.text.engine.engine import Engine
from genwright.text.engine.kv import PAGE
from genwright.text.engine.llm import MAX_BATCH, MAX_TOKENS
from genwright.text.engine.request import Acceptance
from genwright.text.engine.runner import ResidentRunner
from genwright.text.engine.speculative import ROW_COST, Draft, DraftModel, PromptLookup, Speculation
from genwright.text.layers.reference import Reference

TEXT = """
The old harbour of Marrow Bay was built in 1741, when the village had forty families and one well. Its two stone piers
reach three hundred metres into the sea and have withstood every storm but one. In the winter of 1868 a gale from the
north-east broke the outer pier in two places, sank eleven fishing boats and flooded the lower street up to the windows
of the chapel. The villagers rebuilt the pier within two summers, with granite from the quarry at Pell's Hill, which a
narrow railway carried down to the shore. The railway was closed in 1923, but its embankment is still there, and today
it is the most popular walk along the coast. Fishing fed the village for two centuries. In the best years, around 1900,
more than ninety boats landed herring at Marrow Bay, and in the season four hundred women worked in the salting sheds.
When the herring moved away after the war, the fleet shrank to a dozen boats that catch crab and lobster. The salting
sheds stood empty for thirty years, until a group of boat builders rented the largest of them in 1987. They repair
wooden boats there and teach the craft to apprentices from all over the country. The other sheds hold a small museum, a
sailing school and a bakery that is known for its dark rye bread. Last year the council decided to raise the outer pier
by one metre, because the sea rises and storms come more often than they did. The work will take three years and cost
nine million pounds, half of which the government pays. Some fishermen fear that the building site will close the
entrance for weeks at a time. The council has promised that a channel of twenty metres will stay open in every season.
""".replace("\n", " ").strip()
SHORTEN = f"Shorten the following text. Keep the original sentences.\n\nText: {TEXT}\n\nShortened text:"
SUMMARISE = f"Summarise this text: {TEXT}"
INVENT = "Invent a long tale about a clockmaker who finds a door in the sky."


@dataclass
class Contender:
    """A way of running the prompt, and what it took."""

    name: str
    draft: Callable[[], Draft] | None
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    steps: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)

    def run(self, llm: LLM, prompt: list[int], params: SamplingParams) -> list[int]:
        speculation = Speculation(self.draft(), 5, ROW_COST[llm.model.device.type]) if self.draft else None
        llm.engine = Engine(llm.engine.runner, MAX_BATCH, MAX_TOKENS, llm.max_context, speculation)
        started = time.perf_counter()
        result = llm.generate([prompt], params)[0]
        self.seconds.append((time.perf_counter() - started) / len(result.ids))
        self.tokens += len(result.ids)
        self.steps += llm.engine.steps
        if result.acceptance is not None:
            self.acceptance.add(result.acceptance)
        return result.ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    llm = LLM("smollm2", dtype="float32")
    print(f"{platform.machine()}, {arguments.threads} threads, {llm.model.device.type}, float32, greedy, k up to 5")
    print("| prompt | draft | tokens/s | ratio | steps | tokens | accepted per guess | by position |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for what, text, name, draft in (
        ("shorten", SHORTEN, "prompt lookup", PromptLookup),
        ("summarise", SUMMARISE, "prompt lookup", PromptLookup),
        ("invent", INVENT, "prompt lookup", PromptLookup),
        ("invent", INVENT, "random weights", poor(llm)),
    ):
        compare(llm, what, text, name, draft, arguments.rounds, arguments.tokens)


def compare(llm: LLM, what: str, text: str, name: str, draft: Callable[[], Draft], rounds: int, tokens: int) -> None:
    contenders = [Contender("none", None), Contender(name, draft)]
    params = SamplingParams(max_new_tokens=tokens)
    prompt = llm.encode_chat([{"role": "user", "content": text}])
    for _ in range(rounds + 1):  # the first warms up
        answers = [contender.run(llm, prompt, params) for contender in contenders]
        assert answers[0] == answers[1], "greedy tokens differ with a draft"
    plain = statistics.median(contenders[0].seconds[1:])
    for each in contenders:
        seconds = statistics.median(each.seconds[1:])
        rates = " ".join(f"{rate:.2f}" for rate in each.acceptance.rates)
        print(
            f"| {what} | {each.name} | {1 / seconds:.1f} | {plain / seconds:.2f} | {each.steps} | {each.tokens} "
            f"| {each.acceptance.mean:.2f} | {rates} |",
            flush=True,
        )


def poor(llm: LLM) -> Callable[[], Draft]:
    """Three layers of noise with the model's vocabulary."""
    noise = LLM("random:smollm2-135m,layers=3", dtype="float32", max_context=1024).model
    runner = ResidentRunner(noise, Reference(), 1024 // PAGE * 4, MAX_BATCH, MAX_TOKENS)
    return lambda: DraftModel(runner, llm.model, MAX_TOKENS, 1024)


if __name__ == "__main__":
    main()

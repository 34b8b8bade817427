"""Speculative decoding with random weights, each proposed token being accepted with a given probability.

A draft of random weights is right by chance only. Here its proposals are accepted or rejected by a hash of seed and
position instead, so that the cost of proposing and verifying can be measured for any draft's quality. All contenders
are one engine with the same weights, with and without its draft, in turns; rates are medians of decoding after the
first token. `bound` is the ratio if verifying cost no more than a step, and proposing only the reading of the draft's
weights.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import torch
from torch import Tensor

from genwright import LLM, SamplingParams
from genwright.device import upload
from genwright.rng import key
from genwright.text.drafts.speculation import Speculation
from genwright.text.engine.request import Acceptance, Piece, Request
from genwright.text.engine.sampler import Masks, Sampler

WARM_UP = 1  # rounds
PROMPT = [1, 15043, 29892, 590, 1024, 338]


class ForcedAcceptance:
    """In place of `Sampler.sample`: draws each proposed token with a probability, and otherwise the id after it."""

    def __init__(self, sampler: Sampler):
        self.sampler, self.sample = sampler, sampler.sample
        self.probability: float | None = None  # None: draw as always
        sampler.sample = self  # type: ignore[method-assign]

    def __call__(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        positions: Sequence[int],
        before: Tensor | None = None,
        masks: Masks | None = None,
    ) -> Tensor:
        tokens = self.sample(logits, requests, positions, before, masks)
        # Only a step that verifies has several rows of a request; the draft draws one token of each at a time.
        verified = [row for row, (one, following) in enumerate(pairwise(requests)) if one is following]
        if self.probability is None or before is None or not verified:
            return tokens
        number = [place for _, rows in groupby(requests) for place, _ in enumerate(rows)]  # of a row in its request
        values = [
            (row, (row + 1) * before.shape[1] + number[row], not self._is_accepted(requests[row], positions[row]))
            for row in verified
        ]
        rows, places, added = self._upload(values).T.contiguous()
        # The row after this one comes after the token that was proposed for this one.
        return tokens.index_copy_(0, rows, before.view(-1)[places].add_(added).remainder_(self.sampler.vocab))

    def _is_accepted(self, request: Request, position: int) -> bool:
        assert self.probability is not None
        return key(request.seed, request.sample, request.index, position) < self.probability * 2**32

    def _upload(self, values: Sequence[Sequence[int]]) -> Tensor:
        return upload(torch.tensor(values, dtype=torch.int64), self.sampler.device)


@dataclass
class Contender:
    """The engine without a draft, or with acceptance forced to a probability, and its measurements."""

    acceptance: float | None
    rates: list[float] = field(default_factory=list)  # tokens per second
    found: Acceptance = field(default_factory=Acceptance)

    def run(self, llm: LLM, speculation: Speculation, forced: ForcedAcceptance, params: list[SamplingParams]) -> None:
        llm.engine.speculation = None if self.acceptance is None else speculation
        forced.probability = self.acceptance
        pieces: list[tuple[float, int]] = []

        def note(piece: Piece) -> None:
            pieces.append((time.perf_counter(), len(piece.ids)))

        results = llm.generate([[*PROMPT, 100 + index] for index in range(len(params))], params, note)
        started, ended = pieces[len(params) - 1][0], pieces[-1][0]  # when all have their first token
        self.rates.append(sum(count for moment, count in pieces if moment > started) / (ended - started))
        for result in results:
            self.found.add(result.acceptance or Acceptance())


def warm_up(llm: LLM, speculation: Speculation, forced: ForcedAcceptance, batch: int) -> None:
    """Have every number of proposals once: each has kernels and a CUDA graph of its own."""
    most = speculation.k
    for speculation.k in range(1, most + 1):
        params = SamplingParams(temperature=0.8, top_k=200, max_new_tokens=8 * most, ignore_eos=True, seed=0)
        for acceptance in (1.0, 0.5):
            Contender(acceptance).run(llm, speculation, forced, [params] * batch)


def bound(acceptance: float | None, most: int, cost: float) -> float:
    """The largest (1 - a^(k+1)) / (1 - a) / (1 + k c), the speed-up of Leviathan et al. (2023)."""
    if acceptance is None:
        return 1.0
    return max(sum(acceptance**i for i in range(k + 1)) / (1 + k * cost) for k in range(most + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="random:llama-2-7b")
    parser.add_argument("--draft", default="random:llama-2-7b,layers=4")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--acceptance", type=float, nargs="*", default=[0.8, 0.0])
    parser.add_argument("--speculate-k", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    context = len(PROMPT) + given.tokens + 64
    settings = {"device": given.device, "dtype": given.dtype, "speculate_k": given.speculate_k}
    llm = LLM(given.model, draft=given.draft, max_context=context, **settings)
    speculation, forced = llm.engine.speculation, ForcedAcceptance(llm.engine.sampler)
    assert speculation is not None
    contenders = [Contender(None), *map(Contender, given.acceptance)]
    warm_up(llm, speculation, forced, given.batch)
    for number in range(given.rounds + WARM_UP):
        params = SamplingParams(temperature=0.8, top_k=200, max_new_tokens=given.tokens, ignore_eos=True, seed=number)
        for contender in contenders[:: 1 if number % 2 == 0 else -1]:
            contender.run(llm, speculation, forced, [params] * given.batch)
            if number < WARM_UP:
                contender.rates.clear()
    print(f"{given.model}, draft {given.draft} (cost {speculation.draft.cost:.3f}), {llm.model.device}, {given.dtype}")
    print("| acceptance | tokens/s | ratio | bound | accepted per proposal | by position |")
    print("| --- | --- | --- | --- | --- | --- |")
    plain = statistics.median(contenders[0].rates)
    for each in contenders:
        rate = statistics.median(each.rates)
        name = "no draft" if each.acceptance is None else f"{each.acceptance:g}"
        positions = " ".join(f"{share:.2f}" for share in each.found.rates)
        best = bound(each.acceptance, speculation.k, speculation.draft.cost)
        print(f"| {name} | {rate:.1f} | {rate / plain:.2f} | {best:.2f} | {each.found.mean:.2f} | {positions} |")
    llm.close()


if __name__ == "__main__":
    main()

"""Random requests of every kind, and random mixes of them that arrive, leave, are cancelled and are pre-empted."""

import random
from dataclasses import dataclass
from typing import Any

import torch
from text.engine.setup import Letters, check_pages

from genwright import SamplingParams
from genwright.text.engine.engine import Engine
from genwright.text.engine.request import Request

EOS = 2


@dataclass
class Sort:
    """A request that can be made again and again, and what it answers alone."""

    prompt: list[int]
    params: SamplingParams
    answer: Any = None

    def request(self) -> Request:
        return Request(self.prompt, self.params, self.params.seed or 0, frozenset({EOS}), Letters())


def answer(request: Request) -> tuple[Any, ...]:
    result = request.result()
    return result.ids, result.finish_reason, result.text, result.logprobs, result.prompt_logprobs


def random_sorts(count: int, vocab: int, seed: int) -> list[Sort]:
    rng = random.Random(seed)
    common = [rng.randrange(3, vocab) for _ in range(100)]
    return [Sort(_prompt(rng, common, vocab), _params(rng, vocab)) for _ in range(count)]


def _prompt(rng: random.Random, common: list[int], vocab: int) -> list[int]:
    own = [rng.randrange(3, vocab) for _ in range(rng.randint(1, 30))]
    if rng.random() < 0.3:
        return (own[:5] * 10)[: rng.randint(10, 50)]  # repeats itself, so that prompt lookup finds something
    return common[: rng.choice((0, 0, 20, 64, 70, 100))] + own


def _params(rng: random.Random, vocab: int) -> SamplingParams:
    ids = range(3, vocab)
    bias = {token: rng.uniform(-5, 5) for token in rng.sample(ids, 3)} | dict.fromkeys(
        rng.sample(ids, 9), -float("inf")
    )
    return SamplingParams(
        max_new_tokens=rng.randint(1, 12),
        min_new_tokens=rng.choice((0, 0, 3)),
        temperature=rng.choice((0.0, 0.0, 0.7, 1.3)),
        top_k=rng.choice((0, 0, 5, 40)),
        top_p=rng.choice((1.0, 0.7)),
        min_p=rng.choice((0.0, 0.02)),
        repetition_penalty=rng.choice((1.0, 1.0, 1.4)),
        presence_penalty=rng.choice((0.0, 0.0, 0.9)),
        frequency_penalty=rng.choice((0.0, 0.0, 0.6)),
        logit_bias=rng.choice(({}, {}, bias)),
        stop=rng.choice(((), (), ("q", "xy"), ("m",))),
        stop_ids=tuple(rng.sample(ids, rng.choice((0, 0, vocab // 20)))),
        ignore_eos=rng.random() < 0.5,
        logprobs=rng.choice((None, None, 0, 3)),
        prompt_logprobs=rng.random() < 0.2,
        priority=rng.choice((0, 0, 1, -1)),
        seed=rng.randrange(1000),
        logits_processor=forbid_a_third if rng.random() < 0.15 else None,
    )


def forbid_a_third(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """A function of the tokens so far."""
    forbidden = (torch.arange(len(logits), device=logits.device) + ids[-1]) % 3 == 0
    return logits.masked_fill(forbidden, -1e4)


def run_alone(engine: Engine, sorts: list[Sort]) -> None:
    """Give each its answer without neighbours."""
    for sort in sorts:
        request = sort.request()
        engine.submit(request)
        while engine.busy():
            engine.step()
        sort.answer = answer(request)


def run_mix(engine: Engine, sorts: list[Sort], rng: random.Random) -> dict[str, int]:
    """Run these together and compare each with its own answer; returns how often what happened."""
    arrivals = sorted(((rng.choice((0, rng.randint(0, 15))), sort) for sort in sorts), key=lambda item: item[0])
    requests: dict[Request, Sort] = {}
    told: dict[Request, list[int]] = {}
    happened = {"preempted": 0, "cancelled": 0, "accepted": 0}
    preempt = engine.scheduler.preempt

    def counting(request: Request) -> None:
        happened["preempted"] += 1
        preempt(request)

    engine.scheduler.preempt = counting  # type: ignore[method-assign]
    cancels, preempts = rng.choice((0, 0.03)), rng.choice((0, 0.1))
    step = 0
    while arrivals or engine.busy():
        while arrivals and (arrivals[0][0] <= step or not engine.busy()):
            sort = arrivals.pop(0)[1]
            request = sort.request()
            requests[request], told[request] = sort, []
            engine.submit(request)
        if rng.random() < cancels:
            engine.cancel([rng.choice(list(requests))])
        if engine.scheduler.running and rng.random() < preempts:
            engine.scheduler.preempt(engine.scheduler.running[-1])
        for request in engine.step():
            told[request] += request.take().ids
        step += 1
        if step % 4 == 0:
            check_pages(engine)
    check_pages(engine)
    engine.scheduler.preempt = preempt  # type: ignore[method-assign]
    for request, sort in requests.items():
        assert request.pages is None and told[request] == request.output[: len(told[request])]
        happened["accepted"] += sum(request.acceptance.accepted)
        if request.finish_reason == "cancelled":
            happened["cancelled"] += 1
            assert request.output == sort.answer[0][: len(request.output)]
        else:
            assert told[request] == request.output
            assert answer(request) == sort.answer, sort
    return happened

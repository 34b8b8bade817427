"""Many requests on an executor without a model: no page and no request is lost, and none is answered twice."""

import random

import pytest
from text.cache.invariants import available
from text.engine.modelless import VOCAB, ModellessExecutor, expected_tokens
from text.engine.setup import check_pages

from genwright import SamplingParams
from genwright.text.engine.engine import Engine
from genwright.text.engine.request import Request

CONTEXT = 320


class Clients:
    """Send random requests, cancel some, and check what each is given."""

    def __init__(self, engine: Engine, seed: int):
        self.engine, self.rng = engine, random.Random(seed)
        self.prefixes = [self.rng.choices(range(VOCAB), k=250) for _ in range(12)]
        self.open: dict[Request, list[int]] = {}  # tokens that the engine has reported of each
        self.reasons: dict[str, int] = {}
        self.sent = 0

    def send(self) -> None:
        rng = self.rng
        prompt = rng.choice(self.prefixes)[: rng.choice((0, 0, 20, 64, 130, 250))]
        prompt = prompt + rng.choices(range(VOCAB), k=rng.randint(1, 30))
        params = SamplingParams(
            max_new_tokens=rng.randint(1, 24),
            temperature=rng.choice((0.0, 1.0)),
            frequency_penalty=rng.choice((0.0, 0.0, 0.1)),
            stop_ids=tuple(rng.sample(range(VOCAB), rng.choice((0, 0, 1, 3)))),
            priority=rng.choice((0, 0, 0, 1, -1)),
            seed=self.sent,
        )
        request = Request(prompt, params, self.sent)
        self.engine.submit(request)
        self.open[request] = []
        self.sent += 1

    def cancel(self) -> None:
        request = self.rng.choice(list(self.open))
        self.engine.cancel([request])
        self.end(request)

    def receive(self, changed: list[Request]) -> None:
        assert len(set(changed)) == len(changed)
        for request in changed:
            self.open[request] += request.take().ids  # a KeyError if its end was reported before
            if request.finish_reason is not None:
                self.end(request)

    def end(self, request: Request) -> None:
        given, reason = self.open.pop(request), request.finish_reason
        assert reason is not None and request.pages is None
        assert request.output[: len(given)] == given
        whole = expected_tokens(request.tokens[: request.prompt_tokens], request.params.max_new_tokens, request.ends)
        if reason in ("stop", "length"):
            assert given == whole and (reason == "stop") == (whole[-1] in request.ends)
        else:
            assert given == whole[: len(given)]
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


@pytest.mark.parametrize(("steps_ahead", "count", "full_count"), [(0, 500, 20_000), (1, 2000, 200_000)])
def test_no_page_and_no_request_is_lost_and_none_is_answered_twice(steps_ahead, count, full_count, full_size):
    count = full_count if full_size else count
    executor = ModellessExecutor(pages=40, max_batch=32, max_tokens=256, max_context=CONTEXT, refused=0.01)
    engine = Engine(executor, 32, 256, CONTEXT, steps_ahead=steps_ahead)
    clients, preempted = Clients(engine, steps_ahead), 0
    preempt = engine.scheduler.preempt

    def counting(request: Request) -> None:
        nonlocal preempted
        preempted += 1
        preempt(request)

    engine.scheduler.preempt = counting
    while clients.sent < count or engine.busy():
        for _ in range(clients.rng.choice((0, 0, 1, 2, 8)) if clients.sent < count else 0):
            clients.send()
        if clients.open and clients.rng.random() < 0.05:
            clients.cancel()
        clients.receive(engine.step())
        if engine.steps % 500 == 0:
            check_pages(engine)
    assert not clients.open and sum(clients.reasons.values()) == clients.sent
    assert {"stop", "length", "cancelled"} <= set(clients.reasons) and clients.reasons.get("error", 0) < 0.01 * count
    assert available(engine.pool) == executor.cache.pages
    assert preempted and executor.refusals
    assert not engine.sampler._states, "nothing is kept of ended requests"
    check_pages(engine)

"""A step is launched before the host has read the one before it: nothing is lost, nothing is gained, nothing waits."""

import random
from collections.abc import Callable

import pytest
import torch
from text.cache.invariants import available
from text.engine.setup import Letters, check_pages, drain, engine_of, request
from text.families import greedy, make, reference_logits

from genwright import LLM, SamplingParams
from genwright.text.engine.engine import Engine
from genwright.text.engine.request import Request


def params(count: int = 12, **changes) -> SamplingParams:
    return SamplingParams(max_new_tokens=count, ignore_eos=True, **changes)


def prompts(count: int, low: int = 5, high: int = 80, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 199) for _ in range(rng.randint(low, high))] for _ in range(count)]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, make("llama", folder)


@pytest.fixture(scope="module")
def tiny(theirs) -> LLM:
    return LLM(theirs[0], device="cpu", dtype="float32")


def engine(llm: LLM, steps_ahead: int = 1, pages: int = 64, **settings) -> Engine:
    return engine_of(llm, pages, deterministic=True, steps_ahead=steps_ahead, **settings)


def with_text(prompt: list[int], params: SamplingParams) -> Request:
    return Request(prompt, params, params.seed or 0, detokenizer=Letters())


def follow(engine: Engine, requests: list[Request]) -> dict[Request, list[int]]:
    """Run requests; the tokens that `step` reported of each, whose end it reports exactly once."""
    for r in requests:
        engine.submit(r)
    told: dict[Request, list[int]] = {r: [] for r in requests}
    ended = set[Request]()
    while engine.busy():
        changed = engine.step()
        assert len(set(changed)) == len(changed) and not ended & set(changed)
        for r in changed:
            told[r] += r.take().ids
        ended |= {r for r in changed if r.finish_reason is not None}
        check_pages(engine)
    assert ended == set(requests)
    assert available(engine.pool) == engine.pool.cache.pages
    return told


def test_tokens_of_the_step_before_are_taken_on_the_device(theirs, tiny):
    run, late = engine(tiny), []
    forward = run.executor.run

    def spy(chunks, known=None):
        late.append([token for chunk in chunks for token in chunk.tokens if token < 0])
        assert known is not None or not late[-1]
        return forward(chunks, known)

    run.executor.run = spy
    texts = prompts(3)
    assert drain(run, [request(text, params()) for text in texts]) == [greedy(theirs[1], text, 12) for text in texts]
    assert late == [[]] + [[-1, -2, -3]] * 11, "every token but the prompt's comes from the step before"


def test_arrivals_and_ends_do_not_drain_the_pipeline(tiny):
    run = engine(tiny)
    texts, rng = prompts(30), random.Random(1)
    requests = [request(text, params(rng.randint(2, 9))) for text in texts]
    waiting = list(requests)
    run.submit(request(texts[0], params(200)))
    run.step()
    for _ in range(60):
        for r in [waiting.pop() for _ in range(min(len(waiting), rng.randint(0, 2)))]:
            run.submit(r)
        before = run.steps
        run.step()
        assert run.steps == before + 1 and len(run._in_flight) == 1
    assert not waiting and all(r.finish_reason == "length" for r in requests)
    alone = engine(tiny, steps_ahead=0)
    assert [r.output for r in requests] == [
        drain(alone, [request(r.tokens[: r.prompt_tokens], r.params)])[0] for r in requests
    ]


def test_a_limit_costs_no_row_and_a_stop_one(tiny):
    (text,) = prompts(1)
    tokens = drain(engine(tiny, 0), [request(text, params(20))])[0]
    place = next(i for i in range(4, 20) if tokens[i] not in tokens[:i])
    for settings, count in ((params(9), 9), (params(20, stop_ids=(tokens[place],)), place + 1)):
        launched = []
        for steps_ahead in (0, 1):
            run = engine(tiny, steps_ahead)
            assert drain(run, [request(text, settings)]) == [tokens[:count]]
            launched.append(run.steps)
        assert launched == [count, count + bool(settings.stop_ids)]


ENDS: dict[str, Callable[[list[int]], SamplingParams]] = {  # parameters, given the tokens without an end
    "length": lambda tokens: params(7),
    "context": lambda tokens: params(1000),
    "stop id": lambda tokens: params(40, stop_ids=(tokens[6],)),
    "stop string": lambda tokens: params(40, stop=("".join(map(Letters().push, tokens[5:7])),)),
    "stop id after a minimum": lambda tokens: params(40, stop_ids=(tokens[6], tokens[3]), min_new_tokens=5),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_seen_late_loses_nothing_and_gains_nothing(tiny, end):
    texts = prompts(5, seed=2)
    tokens = drain(engine(tiny, 0), [request(texts[0], params(40))])[0]
    settings = [ENDS[end](tokens), *(params(15, temperature=0.8, seed=i, logprobs=2) for i in range(4))]
    answers = []
    for steps_ahead in (0, 1):
        requests = [with_text(text, each) for text, each in zip(texts, settings, strict=True)]
        run = engine(tiny, steps_ahead)
        run.max_context = 110
        told = follow(run, requests)
        assert [told[r] for r in requests] == [r.output for r in requests]
        answers.append([(r.output, r.text, r.finish_reason, r.logprobs) for r in requests])
    assert answers[0] == answers[1]
    assert answers[0][0][2] == ("length" if end in ("length", "context") else "stop")


def test_a_cancelled_request_gets_nothing_more_and_its_neighbours_miss_nothing(tiny):
    texts = prompts(4, seed=3)
    alone = drain(engine(tiny, 0), [request(text, params()) for text in texts])
    for after in range(8):
        run = engine(tiny)
        requests = [request(text, params()) for text in texts]
        for r in requests:
            run.submit(r)
        for _ in range(after):
            run.step()
        run.cancel(requests[1:2])
        given = list(requests[1].output)
        assert requests[1].pages is None and requests[1] not in run.scheduler.waiting
        while run.busy():
            assert requests[1] not in run.step()
            check_pages(run)
        assert requests[1].output == given == alone[1][: len(given)] and requests[1].finish_reason == "cancelled"
        assert [r.output for r in requests if r is not requests[1]] == [alone[i] for i in (0, 2, 3)]
        assert available(run.pool) == run.pool.cache.pages


def test_nan_is_seen_late_and_ends_one_request_alone(tiny):
    texts = prompts(3, seed=4)
    alone = drain(engine(tiny, 0), [request(text, params()) for text in texts])
    run = engine(tiny)
    forward = run.executor.run

    def poisoned(chunks, known=None):
        logits = forward(chunks, known).clone()
        logits[1, 5] = float("nan") if run.steps == 4 else logits[1, 5]
        return logits

    run.executor.run = poisoned
    requests = [request(text, params()) for text in texts]
    follow(run, requests)
    assert [r.finish_reason for r in requests] == ["length", "error", "length"]
    assert [r.output for r in requests] == [alone[0], alone[1][:4], alone[2]]


def test_a_preempted_request_computes_again_what_was_in_flight(tiny):
    texts = prompts(4, seed=5)
    settings = [params(30, temperature=0.9, seed=i, frequency_penalty=0.5, logprobs=1) for i in range(4)]
    answers = []
    for steps_ahead in (0, 1):
        run, requests = engine(tiny, steps_ahead), [request(*pair) for pair in zip(texts, settings, strict=True)]
        rng, step = random.Random(6), run.step

        def preempting(run=run, rng=rng, step=step):
            if run.scheduler.running and rng.random() < 0.3:
                run.scheduler.preempt(run.scheduler.running[-1])
            return step()

        run.step = preempting
        follow(run, requests)
        answers.append([(r.output, r.logprobs) for r in requests])
    assert answers[0] == answers[1]
    assert [tokens for tokens, _ in answers[0]] == drain(
        engine(tiny, 0), [request(*pair) for pair in zip(texts, settings, strict=True)]
    )


def test_log_probabilities_are_the_same_a_step_late(theirs, tiny):
    texts = prompts(4, 2, 90, seed=6)
    settings = [params(8, logprobs=k, prompt_logprobs=k != 1) for k in (0, 1, 3, 5)]
    answers = []
    for steps_ahead in (0, 1):
        requests = [request(*pair) for pair in zip(texts, settings, strict=True)]
        run = engine(tiny, steps_ahead, max_tokens=37)
        follow(run, [*requests, request(texts[0], params(20))])
        answers.append([r.result() for r in requests])
    for first, second, text, each in zip(*answers, texts, settings, strict=True):
        assert (first.ids, first.logprobs, first.prompt_logprobs) == (
            second.ids,
            second.logprobs,
            second.prompt_logprobs,
        )
        scores = reference_logits(theirs[1], [*text, *first.ids]).log_softmax(-1)
        found = [*(first.prompt_logprobs or [None] * len(text)), *first.logprobs]
        assert len(found) == len(text) + 8 and found[0] is None
        for position, logprob in enumerate(found):
            if logprob is not None:
                assert logprob.id == [*text, *first.ids][position]
                assert logprob.logprob == pytest.approx(scores[position - 1, logprob.id].item(), abs=1e-3)
                best = scores[position - 1].topk(each.logprobs)
                assert list(logprob.top) == best.indices.tolist()


@pytest.mark.parametrize("steps_ahead", [0, 1])
def test_memory_that_stays_short_lets_one_request_run_at_a_time(tiny, steps_ahead):
    texts = prompts(4, seed=10)
    alone = drain(engine(tiny, 0), [request(text, params(frequency_penalty=0.5)) for text in texts])
    run = engine(tiny, steps_ahead)
    logprobs = run.sampler.logprobs

    def short_of_memory(logits, tokens, top):
        if len(logits) > 1:
            raise torch.OutOfMemoryError("after the tokens were sampled and counted")
        return logprobs(logits, tokens, top)

    run.sampler.logprobs = short_of_memory
    requests = [request(text, params(frequency_penalty=0.5, logprobs=0)) for text in texts]
    told = follow(run, requests)
    assert [told[r] for r in requests] == alone

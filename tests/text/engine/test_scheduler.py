"""What a step computes, without a model: order, budgets, admission and pre-emption."""

import random

import pytest
import torch
from text.cache.invariants import available, check_pool

from genwright import SamplingParams
from genwright.kernels import PAGE
from genwright.text.cache.layout import Cache, CacheSpec, LayerSpec
from genwright.text.cache.pages import PagePool
from genwright.text.engine.request import Request
from genwright.text.engine.scheduler import Scheduler


def new_scheduler(pages: int, max_batch: int = 8, max_tokens: int = 128, windows=(None,)) -> Scheduler:
    spec = CacheSpec([LayerSpec({"row": (1,)}, window) for window in windows], torch.float32)
    pool = PagePool(Cache(spec, pages + spec.null_pages, torch.device("cpu")), max_tokens)
    return Scheduler(pool, max_batch, max_tokens)


def queue(scheduler: Scheduler, *prompts: list[int], answer: int = 4, **params) -> list[Request]:
    requests = [Request(prompt, SamplingParams(max_new_tokens=answer, **params), 0) for prompt in prompts]
    scheduler.waiting += requests
    return requests


def step(scheduler: Scheduler) -> list[tuple[Request, int]]:
    """Schedule, and do as the engine does after a step; every request gets token 9 next."""
    work = scheduler.schedule()
    for request, count in work:
        assert request.pages is not None and request.pages.capacity() >= request.pages.length + count
        request.pages.length += count
        scheduler.pool.share(request.pages, request.tokens)
        if not request.pending:
            request.add(9)
        if request.finish_reason is not None:
            scheduler.remove(request, keep=True)
    check_pool(scheduler.pool, [request.pages for request in scheduler.running])
    return work


def prompt(first: int, count: int) -> list[int]:
    return [first, *range(100, 99 + count)]


def test_decoding_comes_before_prompts_and_prompts_get_what_is_left() -> None:
    scheduler = new_scheduler(pages=32, max_tokens=100)
    a, b, c = queue(scheduler, prompt(1, 90), prompt(2, 150), prompt(3, 20))
    assert step(scheduler) == [(a, 90), (b, 10)]
    assert step(scheduler) == [(a, 1), (b, 99)]
    assert step(scheduler) == [(a, 1), (b, 41), (c, 20)]
    assert step(scheduler) == [(a, 1), (b, 1), (c, 1)]


def test_no_more_sequences_than_the_batch_and_no_more_tokens_than_the_step() -> None:
    scheduler = new_scheduler(pages=64, max_batch=3, max_tokens=16)
    queue(scheduler, *(prompt(i, 5 + 7 * i) for i in range(9)))
    while scheduler.running or scheduler.waiting:
        work = step(scheduler)
        assert 1 <= len(work) <= 3 and sum(count for _, count in work) <= 16
        assert len({request for request, _ in work}) == len(work) and all(count > 0 for _, count in work)


def test_a_step_smaller_than_the_batch_serves_the_oldest_first() -> None:
    scheduler = new_scheduler(pages=16, max_batch=4, max_tokens=2)
    a, b, c = queue(scheduler, [1], [2], [3])
    assert step(scheduler) == [(a, 1), (b, 1)]
    assert step(scheduler) == [(a, 1), (b, 1)]
    while a.finish_reason is None:
        step(scheduler)
    assert step(scheduler) == [(c, 1)]


def test_first_come_first_served_even_if_a_later_one_would_fit() -> None:
    scheduler = new_scheduler(pages=4)
    a, large, small = queue(scheduler, prompt(1, 100), prompt(2, 180), prompt(3, 5))
    assert step(scheduler) == [(a, 100)]
    assert list(scheduler.waiting) == [large, small] and not scheduler.may_admit()
    while a.finish_reason is None:
        step(scheduler)
    assert scheduler.may_admit(), "pages have come free"
    assert step(scheduler) == [(large, 128)]


def test_the_youngest_gives_way_and_is_first_to_come_back() -> None:
    scheduler = new_scheduler(pages=3)
    a, b, c = queue(scheduler, prompt(1, PAGE - 1), prompt(2, PAGE - 1), prompt(3, PAGE - 1), answer=8)
    (d,) = queue(scheduler, prompt(4, 3))
    step(scheduler)
    assert scheduler.running == [a, b, c]
    step(scheduler)
    assert step(scheduler) == [(a, 1)], "its second page is the third one's, and the other's is the second one's"
    assert scheduler.running == [a] and list(scheduler.waiting) == [b, c, d]
    while a.finish_reason is None:
        step(scheduler)
    step(scheduler)
    assert scheduler.running[0] is b
    while scheduler.running or scheduler.waiting:
        step(scheduler)
    assert [len(request.output) for request in (a, b, c)] == [8, 8, 8]


def test_what_a_preempted_sequence_computed_is_found_again() -> None:
    scheduler = new_scheduler(pages=8)
    (a,) = queue(scheduler, prompt(1, 100))
    step(scheduler)
    scheduler.preempt(a)
    assert scheduler.waiting[0] is a and available(scheduler.pool) == 8
    assert step(scheduler) == [(a, 1)]


def test_a_prompt_waits_for_pages_that_another_is_computing() -> None:
    scheduler = new_scheduler(pages=32, max_tokens=100)
    a, b = queue(scheduler, [*prompt(1, 300), 7], [*prompt(1, 300), 8])
    assert step(scheduler) == [(a, 100)]
    assert step(scheduler) == [(a, 100)] and list(scheduler.waiting) == [b]
    step(scheduler)
    step(scheduler)
    assert b.cached_tokens >= 300 // PAGE * PAGE


def test_prompt_logprobs_are_computed_from_the_first_token_on() -> None:
    scheduler = new_scheduler(pages=32, max_tokens=512)
    queue(scheduler, prompt(1, 200))
    step(scheduler)
    (b,) = queue(scheduler, prompt(1, 200), prompt_logprobs=True)
    assert (b, 200) in step(scheduler)
    assert b.cached_tokens == 0


def test_removing_a_request_gives_its_pages_back() -> None:
    scheduler = new_scheduler(pages=8)
    a, b = queue(scheduler, prompt(1, 300), prompt(2, 300))
    step(scheduler)
    scheduler.remove(b, keep=True)
    scheduler.remove(a, keep=False)
    assert not scheduler.running and not scheduler.waiting
    assert sorted(scheduler.pool.free) == list(range(8)), "what is not kept is in no tree"


def test_reserve_tells_how_many_tokens_have_room() -> None:
    scheduler = new_scheduler(pages=2)
    (a,) = queue(scheduler, prompt(1, 100))
    step(scheduler)
    assert scheduler.reserve(a, 5) == 5
    assert scheduler.reserve(a, 60) == 2 * PAGE - len(a.tokens)


@pytest.mark.parametrize("windows", [(None,), (50,), (30, 30, 30, 30, 30, None)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_however_few_pages_there_are(windows, seed: int) -> None:
    """Pages for the longest request alone: the oldest always goes on, the others come and go."""
    rng = random.Random(seed)
    spec = CacheSpec([LayerSpec({"row": (1,)}, window) for window in windows], torch.float32)
    scheduler = new_scheduler(spec.pages_of(400, 64), max_tokens=64, windows=windows)
    texts = [[rng.randrange(2), *range(100, 99 + rng.randint(1, 300)), rng.randrange(3)] for _ in range(25)]
    requests = queue(scheduler, *texts, answer=90)
    preempted, preempt = [], scheduler.preempt
    scheduler.preempt = lambda request: (preempted.append(request), preempt(request))  # type: ignore[func-returns-value]
    for _ in range(25 * 400):
        if not scheduler.running and not scheduler.waiting:
            break
        oldest = scheduler.running[0] if scheduler.running else scheduler.waiting[0]
        work = step(scheduler)
        assert oldest in [request for request, _ in work], "the oldest makes progress in every step"
        if rng.random() < 0.01:
            scheduler.remove(rng.choice(requests), keep=rng.random() < 0.5)
    assert not scheduler.running and not scheduler.waiting and preempted
    assert available(scheduler.pool) == scheduler.pool.cache.pages - spec.null_pages

"""What a step computes, without a model: order, budgets, admission and pre-emption."""

import random
from typing import Any

import pytest
import torch
from text.cache.invariants import available
from text.engine.scheduling import Flight, new_scheduler, prompt, queue, step

from genwright.kernels import PAGE
from genwright.text.cache.layout import CacheSpec, LayerSpec
from genwright.text.engine.request import Request
from genwright.text.engine.scheduler import SPREAD, Scheduler


def test_decoding_comes_before_prompts_and_prompts_get_what_is_left() -> None:
    scheduler = new_scheduler(pages=32, max_tokens=100)
    a, b, c = queue(scheduler, prompt(1, 90), prompt(2, 95), prompt(3, 20), answer=20)
    assert step(scheduler) == [(a, 90), (b, 10)]
    assert step(scheduler) == [(a, 1), (b, 27)], "a quarter of the 105 tokens that wait, rounded up"
    for _ in range(2):
        assert step(scheduler) == [(a, 1), (b, 25)], "a quarter of a step"
    assert step(scheduler) == [(a, 1), (b, 8), (c, 17)]
    assert step(scheduler) == [(a, 1), (b, 1), (c, 3)]
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
    assert list(scheduler.waiting) == [large, small]
    while a.finish_reason is None:
        assert step(scheduler) == [(a, 1)]
    assert step(scheduler) == [(large, 123), (small, 5)]


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
    assert (b, 128) in step(scheduler)
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


def steps_to_first_token(scheduler: Scheduler, request: Request, in_flight: Flight | None = None) -> int:
    for number in range(1, 100):
        step(scheduler, in_flight)
        if request.output:
            return number
    raise AssertionError("no token in a hundred steps")


@pytest.mark.parametrize("streams", [0, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_short_prompt_does_not_wait_for_a_long_one(streams: int, ahead: bool) -> None:
    scheduler, in_flight = new_scheduler(pages=400, max_tokens=128), [] if ahead else None
    queue(scheduler, *([i] for i in range(streams)), answer=90)
    step(scheduler, in_flight)
    (long,) = queue(scheduler, prompt(200, 12_000))
    step(scheduler, in_flight)
    (short,) = queue(scheduler, prompt(201, 30))
    assert steps_to_first_token(scheduler, short, in_flight) <= 2 + ahead
    assert not long.output


def test_two_long_prompts_share_the_step_and_each_alone_gets_all_of_it() -> None:
    scheduler = new_scheduler(pages=100, max_tokens=100)
    a, b = queue(scheduler, prompt(1, 1000), prompt(2, 500))
    assert step(scheduler) == [(a, 50), (b, 50)]
    scheduler.remove(b, keep=True)
    assert step(scheduler) == [(a, 100)]
    queue(scheduler, prompt(1, 1000))
    assert step(scheduler) == [(a, 100)], "the second one waits for pages of the first, and takes nothing from it"


def test_priorities_come_before_the_order_of_arrival() -> None:
    scheduler = new_scheduler(pages=64, max_batch=2, max_tokens=20)
    (a,) = queue(scheduler, prompt(1, 5))
    assert step(scheduler) == [(a, 5)]
    (low,) = queue(scheduler, prompt(2, 5), priority=-1)
    (normal,) = queue(scheduler, prompt(3, 5))
    high, next_high = queue(scheduler, prompt(4, 5), prompt(5, 5), priority=7)
    assert scheduler.waiting == [high, next_high, normal, low]
    ended = []
    while scheduler.running or scheduler.waiting:
        assert scheduler.running == sorted(scheduler.running, key=lambda r: (-r.params.priority, r.order))
        before = list(scheduler.running)
        step(scheduler)
        ended += [request for request in before if request.finish_reason is not None]
    assert ended == [a, high, next_high, normal, low]


def test_the_lowest_priority_gives_way_whenever_it_came() -> None:
    scheduler = new_scheduler(pages=3)
    (low,) = queue(scheduler, prompt(1, PAGE - 1), priority=-1)
    (a,) = queue(scheduler, prompt(2, PAGE - 1))
    (b,) = queue(scheduler, prompt(3, PAGE - 1))
    step(scheduler)
    assert scheduler.running == [a, b, low]
    step(scheduler)
    step(scheduler)
    assert scheduler.running[0] is a and low in scheduler.waiting


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("max_tokens", [4, 32])
def test_streams_get_a_token_in_every_step_whatever_prompts_come(ahead: bool, max_tokens: int) -> None:
    """And the step is at most an eighth of the queue or of the largest step beside them, so they come at a pace."""
    rng = random.Random(0)
    scheduler, in_flight = new_scheduler(pages=500, max_tokens=max_tokens), [] if ahead else None
    streams = queue(scheduler, [1], [2], [3], answer=150)
    step(scheduler, in_flight)
    for _ in range(100):
        if rng.random() < 0.3:
            queue(scheduler, *(prompt(rng.randrange(9, 90), rng.randint(1, 60)) for _ in range(rng.randint(1, 3))))
        prompts = {r: r.pending for r in scheduler.running if r.pending > 1} | {
            r: len(r.tokens) for r in scheduler.waiting
        }
        queued = sum(prompts.values())
        before, full = [r.expected for r in streams], len(scheduler.running) == scheduler.max_batch
        work = dict(step(scheduler, in_flight))
        assert [r.expected for r in streams] == [count + 1 for count in before]
        assert sum(work.values()) <= max_tokens
        chunks = sum(count for request, count in work.items() if request in prompts)
        assert chunks <= -(-max(queued, max_tokens) // SPREAD)
        assert chunks or not queued or full or len(work) == max_tokens, "prompts go on too"


def test_a_limit_reached_in_flight_is_not_scheduled_again() -> None:
    scheduler, in_flight = new_scheduler(pages=8), list[Any]()
    a, b = queue(scheduler, [1], answer=1), queue(scheduler, [2], answer=3)
    a, b = a[0], b[0]
    assert step(scheduler, in_flight) == [(a, 1), (b, 1)]
    assert (a.unread, a.expected, a.finish_reason) == (1, 2, None), "its only token is on its way"
    assert step(scheduler, in_flight) == [(b, 1)]
    assert a.finish_reason == "length" and b.output == [9]
    assert step(scheduler, in_flight) == [(b, 1)]
    assert step(scheduler, in_flight) == [], "the third one is on its way"
    assert b.output == [9, 9, 9] and not in_flight and not scheduler.running


def test_what_is_in_flight_counts_as_computed() -> None:
    scheduler, in_flight = new_scheduler(pages=32, max_tokens=100), list[Any]()
    (a,) = queue(scheduler, prompt(1, 250))
    assert [step(scheduler, in_flight) for _ in range(4)] == [[(a, 100)], [(a, 100)], [(a, 50)], [(a, 1)]]
    assert (a.in_flight, a.unread, a.pending, len(a.output)) == (1, 1, 1, 1)
    scheduler.preempt(a)
    assert (a.in_flight, a.unread, a.pages) == (0, 0, None)
    step(scheduler, in_flight)
    assert a.output == [9], "what was in flight is computed again"


def test_nothing_is_admitted_on_hold_until_a_request_leaves() -> None:
    scheduler = new_scheduler(pages=32)
    a, b = queue(scheduler, [1], [2])
    step(scheduler)
    scheduler.preempt(b)
    scheduler.hold()
    while a.finish_reason is None:
        assert step(scheduler) == [(a, 1)]
    assert step(scheduler) == [(b, 1)]
    scheduler.preempt(b)
    scheduler.hold()
    assert step(scheduler) == [(b, 1)], "nothing runs, so it has all the memory"


@pytest.mark.parametrize("windows", [(None,), (50,), (30, 30, 30, 30, 30, None)], ids=str)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ahead", "tiered"), [(False, False), (True, False), (True, True)])
def test_every_request_ends_however_few_pages_there_are(windows, seed: int, ahead: bool, tiered: bool) -> None:
    """Pages for the longest request alone: the oldest always goes on, the others come and go."""
    rng = random.Random(seed)
    spec = CacheSpec([LayerSpec({"row": (1,)}, window) for window in windows], torch.float32)
    in_flight = [] if ahead else None
    pages = spec.pages_of(400, 64 * (1 + ahead))
    scheduler = new_scheduler(pages, max_tokens=64, windows=windows, tiered=tiered, steps=1 + ahead)
    texts = [[rng.randrange(2), *range(100, 99 + rng.randint(1, 300)), rng.randrange(3)] for _ in range(25)]
    requests = queue(scheduler, *texts, answer=90)
    preempted, preempt = [], scheduler.preempt
    scheduler.preempt = lambda request: (preempted.append(request), preempt(request))  # type: ignore[func-returns-value]
    for _ in range(25 * 400):
        if not scheduler.running and not scheduler.waiting:
            break
        oldest = scheduler.running[0] if scheduler.running else scheduler.waiting[0]
        waits = oldest.pages is not None and oldest.expected >= oldest.limit  # for its last token
        work = step(scheduler, in_flight)
        assert waits or oldest in [request for request, _ in work], "the oldest makes progress in every step"
        if rng.random() < 0.01:
            scheduler.remove(rng.choice(requests), keep=rng.random() < 0.5)
    assert not scheduler.running and not scheduler.waiting and preempted
    assert available(scheduler.pool) == scheduler.pool.cache.pages - spec.null_pages * (1 + tiered)

"""A scheduler without a model, and steps that do with its requests what the engine does."""

import torch
from text.cache.invariants import check_pool

from genwright import SamplingParams
from genwright.placement.tiers import Tiers
from genwright.text.cache.layout import Cache, CacheSpec, LayerSpec
from genwright.text.cache.pages import SequencePages
from genwright.text.cache.tiered import TieredCache, new_pages
from genwright.text.engine.request import Request
from genwright.text.engine.scheduler import Scheduler


def new_scheduler(
    pages: int, max_batch: int = 8, max_tokens: int = 128, windows=(None,), tiered=False, steps=1
) -> Scheduler:
    """With so many pages, or so many in each of two tiers."""
    spec = CacheSpec([LayerSpec({"row": (1,)}, window) for window in windows], torch.float32)
    count, cpu = pages + spec.null_pages, torch.device("cpu")
    cache = TieredCache(spec, (count, count, 0), (50, 50, 0), Tiers(cpu)) if tiered else Cache(spec, count, cpu)
    return Scheduler(new_pages(cache, max_tokens * steps), max_batch, max_tokens)


def queue(scheduler: Scheduler, *prompts: list[int], answer: int = 4, **params) -> list[Request]:
    requests = [Request(prompt, SamplingParams(max_new_tokens=answer, **params), 0) for prompt in prompts]
    for request in requests:
        scheduler.add(request)
    return requests


Flight = list[list[tuple[Request, int, bool, SequencePages]]]  # steps launched and not committed


def step(scheduler: Scheduler, in_flight: Flight | None = None) -> list[tuple[Request, int]]:
    """Schedule, launch and commit as the engine does, with `in_flight` a step late; every request gets token 9 next."""
    work = scheduler.schedule()
    launched = []
    for request, count in work:
        assert request.pages is not None and count > 0
        assert request.pages.capacity() >= request.pages.length + request.in_flight + count
        samples = request.pending == count
        request.in_flight += count
        request.unread += samples
        launched.append((request, count, samples, request.pages))
    steps, ahead = ([], 0) if in_flight is None else (in_flight, int(bool(work)))
    steps += [launched] if work else []
    while len(steps) > ahead:
        commit(scheduler, steps.pop(0))
    check_pool(scheduler.pool, [request.pages for request in scheduler.running])
    return work


def commit(scheduler: Scheduler, launched) -> None:
    for request, count, samples, pages in launched:
        if request.pages is not pages:
            continue  # it ended or was pre-empted
        request.in_flight -= count
        request.unread -= samples
        pages.length += count
        scheduler.pool.share(pages, request.tokens)
        if samples:
            request.add(9)
        if request.finish_reason is not None:
            scheduler.remove(request, keep=True)


def prompt(first: int, count: int) -> list[int]:
    return [first, *range(100, 99 + count)]

"""Serving: requests of random lengths and arrival times, how they were answered, and how long that takes at best."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from queue import SimpleQueue

import numpy as np
import torch

from genwright.bench.experiments import Point, Traffic
from genwright.bench.roofline import Roofline
from genwright.bench.rows import GIGA, TERA, Row
from genwright.bench.work import Work
from genwright.rng import extend, key, key_tensor
from genwright.text.engine.loop import Delivery
from genwright.text.engine.request import Request
from genwright.text.llm import LLM


@dataclass(frozen=True)
class Arrival:
    """A request, and when it comes."""

    at: float  # seconds after the start
    prompt: list[int]
    new: int  # tokens to generate


@dataclass(frozen=True)
class Served:
    """One run of all requests, timed by the caller."""

    seconds: float  # until the last token
    prompt: int  # tokens
    new: int
    first: list[float]  # of each request: seconds from its arrival to its first token
    gaps: list[float]  # seconds between deliveries of tokens that follow each other in a stream, of all streams
    rate: float | None = None  # requests that arrived per second; None if all came at once


def lengths(traffic: Traffic) -> list[tuple[int, int]]:
    """The prompt and new tokens of each request; the same in every run, so that runs have the same work."""
    return [
        (
            traffic.prompt[0] + key(traffic.requests, number, 0) % (traffic.prompt[1] - traffic.prompt[0] + 1),
            traffic.new[0] + key(traffic.requests, number, 1) % (traffic.new[1] - traffic.new[0] + 1),
        )
        for number in range(traffic.requests)
    ]


def arrivals(traffic: Traffic, turn: int, rate: float | None, vocab: int) -> list[Arrival]:
    """The requests of one run; prompts are random tokens, different at every turn and for every kind of traffic."""
    seed = key(traffic.requests, *traffic.prompt, *traffic.new, int(1e6 * (rate or 0)), turn)
    found, at = [], 0.0
    for number, (prompt, new) in enumerate(lengths(traffic)):
        if rate is not None:  # the times between arrivals of a Poisson process are exponential
            at -= math.log((key(traffic.requests, turn, number, 2) + 0.5) / 2**32) / rate
        tokens = extend(key_tensor([key(seed, number)]), torch.arange(prompt)).long().remainder(vocab)
        found.append(Arrival(at, tokens.tolist(), new))
    return found


def served(requests: Sequence[Arrival], started: float, times: Sequence[Sequence[float]]) -> Served:
    """One run, from the times at which tokens of each request were delivered."""
    return Served(
        max(each[-1] for each in times) - started,
        sum(len(request.prompt) for request in requests),
        sum(request.new for request in requests),
        [each[0] - started - request.at for request, each in zip(requests, times, strict=True)],
        [later - earlier for each in times for earlier, later in pairwise(each)],
    )


def drive(llm: LLM, due: Sequence[tuple[float, Request]]) -> tuple[float, list[list[float]]]:
    """Submit each request when it is due and wait for all; the time of the start, and of each request's deliveries."""
    times: dict[Request, list[float]] = {request: [] for _, request in due}
    ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def deliver(delivery: Delivery) -> None:
        now = time.perf_counter()
        if isinstance(delivery, BaseException):
            ends.put(delivery)
            return
        for request, piece in delivery:
            if piece.ids:
                times[request].append(now)
            if piece.finish_reason is not None:
                ends.put(None)

    started = time.perf_counter()
    for at, requests in groupby(due, key=itemgetter(0)):
        time.sleep(max(0.0, started + at - time.perf_counter()))
        llm.loop.submit([request for _, request in requests], deliver)
    for _ in due:
        if (error := ends.get()) is not None:
            raise error
    return started, list(times.values())


def whole_work(traffic: Traffic, work: Callable[[Point], Work]) -> Work:
    """The work of all steps of a run, from that of a point; weights are read as if all requests decoded together."""
    each = [(new - 1, work(Point(1, prompt, new))) for prompt, new in lengths(traffic)]
    return Work(
        weights=max(steps for steps, _ in each) * work(Point(traffic.requests)).weights,
        cache=sum(steps * one.cache for steps, one in each),
        decode=sum(steps * one.decode for steps, one in each),
        prefill=sum(one.prefill for _, one in each),
    )


def least_seconds(work: Work, limits: Roofline) -> float:
    """Seconds of a run if prefill and then decoding ran at the device's limits."""
    decoding = max((work.weights + work.cache) / limits.read, work.decode / limits.matmul)
    return work.prefill / limits.matmul + decoding


def fill_serving(row: Row, runs: Sequence[Served], work: Work, limits: Roofline) -> Row:
    """A row with figures, which are medians of the runs."""
    seconds = statistics.median(run.seconds for run in runs)
    prompt, new = runs[0].prompt, runs[0].new
    operations, read = work.prefill + work.decode, work.weights + work.cache
    return replace(
        row,
        samples=len(runs),
        rate=runs[0].rate,
        total=(prompt + new) / seconds,
        prompt_per_second=prompt / seconds,
        tokens_per_second=new / seconds,
        ttft_p50=_median_percentile([run.first for run in runs], 50),
        ttft_p99=_median_percentile([run.first for run in runs], 99),
        tbt_p50=_median_percentile([run.gaps for run in runs], 50),
        tbt_p99=_median_percentile([run.gaps for run in runs], 99),
        limits_share=least_seconds(work, limits) / seconds,
        serving_tflops=operations / seconds / TERA,
        serving_intensity=operations / read,
        read_gbps=limits.read / GIGA,
        matmul_tflops=limits.matmul / TERA,
    )


def _median_percentile(runs: Sequence[Sequence[float]], percent: int) -> float | None:
    """The median over runs of a percentile; None if there are no values."""
    return statistics.median(float(np.percentile(run, percent)) for run in runs) if all(runs) else None

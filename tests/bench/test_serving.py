"""Requests of random lengths and arrivals, what is counted of a run, and the time it takes at best."""

import math
import statistics
from dataclasses import replace

import pytest

from genwright import LLM
from genwright.bench.experiments import Experiment, Point, Traffic
from genwright.bench.measure import measure, timed
from genwright.bench.roofline import Roofline
from genwright.bench.rows import Row
from genwright.bench.serving import Arrival, Served, arrivals, fill_serving, least_seconds, lengths, served, whole_work
from genwright.bench.work import Work, work_of
from genwright.text.settings import EngineConfig

TINY = "random:stories15m,layers=1"
CPU = EngineConfig(device="cpu", dtype="float32")
SMALL = Traffic(6, (5, 20), (3, 9))


def test_lengths_are_uniform_in_their_ranges_and_the_same_in_every_run():
    traffic = Traffic(4000, (64, 1024), (32, 256))
    prompts, news = zip(*lengths(traffic), strict=True)
    assert (min(prompts), max(prompts), min(news), max(news)) == (64, 1024, 32, 256)
    assert statistics.mean(prompts) == pytest.approx(544, rel=0.03)
    assert statistics.mean(news) == pytest.approx(144, rel=0.03)
    assert abs(statistics.correlation(prompts, news)) < 0.05
    runs = [arrivals(SMALL, turn, None, 1000) for turn in range(2)]
    assert [[(len(each.prompt), each.new) for each in run] for run in runs] == [lengths(SMALL)] * 2


def test_prompts_never_repeat():
    kinds = [(SMALL, None), (SMALL, 2.0), (SMALL, 3.0), (replace(SMALL, prompt=(9, 9)), None)]
    found = [
        each.prompt[:5]
        for traffic, rate in kinds
        for turn in range(-1, 2)
        for each in arrivals(traffic, turn, rate, 999)
    ]
    assert len(set(map(tuple, found))) == len(found)
    assert all(0 <= token < 999 for prompt in found for token in prompt)


def test_arrivals_are_a_poisson_process():
    assert {each.at for each in arrivals(SMALL, 0, None, 1000)} == {0.0}
    times = [each.at for each in arrivals(Traffic(4000, (1, 1), (2, 2)), 0, 5.0, 1000)]
    gaps = [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
    assert statistics.mean(gaps) == pytest.approx(1 / 5, rel=0.05)
    assert sum(gap > 0.4 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-2), rel=0.1)


def test_what_is_counted_of_a_run():
    requests = [Arrival(0.0, [1, 2, 3], 3), Arrival(1.5, [4], 2)]
    run = served(requests, 10.0, [[11.0, 11.5, 12.0], [12.0, 13.0]])
    assert run == Served(3.0, 4, 5, [1.0, 0.5], [0.5, 0.5, 1.0])
    slow = replace(run, seconds=6.0, first=[2.0, 4.0], gaps=[1.0, 1.0, 3.0], rate=2.0)
    work = Work(weights=10e9, cache=6e9, decode=1e12, prefill=1e12)
    row = fill_serving(Row("x", "m", "cpu"), [slow] * 3, work, Roofline(read=16e9, matmul=2e12))
    assert (row.total, row.prompt_per_second, row.tokens_per_second) == (9 / 6, 4 / 6, 5 / 6)
    assert (row.ttft_p50, row.tbt_p50, row.rate) == (3.0, 1.0, 2.0)
    assert row.ttft_p99 == pytest.approx(3.98)
    assert row.tbt_p99 == pytest.approx(2.96)
    assert row.limits_share == pytest.approx((0.5 + 1.0) / 6)
    assert row.serving_tflops == pytest.approx(2 / 6)
    assert fill_serving(Row("x", "m", "cpu"), [replace(slow, gaps=[])], work, Roofline(1.0, 1.0)).tbt_p50 is None


def test_the_least_time_has_memory_or_products_as_the_limit_of_decoding():
    work = Work(weights=10.0, cache=6.0, decode=30.0, prefill=20.0)
    assert least_seconds(work, Roofline(read=2.0, matmul=10.0)) == 2.0 + 8.0
    assert least_seconds(work, Roofline(read=8.0, matmul=10.0)) == 2.0 + 3.0


def test_the_work_of_a_run_is_that_of_its_requests():
    llm = LLM(TINY, CPU, max_context=64)
    same = whole_work(Traffic(3, (8, 8), (5, 5)), lambda point: work_of(llm, point))
    step = work_of(llm, Point(3, 8, 5))  # three equal requests are a batch, whose first tokens come with the prompts
    assert same.weights == 4 * step.weights
    assert same.cache == pytest.approx(4 * step.cache)
    assert same.decode == pytest.approx(4 * step.decode)
    assert same.prefill == pytest.approx(step.prefill)
    ragged = whole_work(SMALL, lambda point: work_of(llm, point))
    assert ragged.weights == step.weights * (max(new for _, new in lengths(SMALL)) - 1)


class Steady:
    """A contender that gives every request a token each second from its arrival on, by its own account."""

    name, load, dtype = "steady", 1.5, "ternary"

    def __init__(self, experiment: Experiment, llm: LLM):
        self.seen: list[list[float]] = []

    def work(self, point: Point) -> Work:
        return Work(1.0, 1.0, 1.0, 1.0)

    def sample(self, prompts, new, seed):
        return timed(0.0, new, [[float(n + 1) for n in range(new)]] * len(prompts))

    def serve(self, requests):
        return served(requests, 0.0, [[each.at + n + 1 for n in range(each.new)] for each in requests])


def test_a_serving_experiment(monkeypatch):
    monkeypatch.setattr("genwright.bench.measure.measure_roofline", lambda *_: Roofline(1e10, 1e12))
    told: list[str] = []
    points = (SMALL, replace(SMALL, share=0.5), replace(SMALL, rate=40.0), replace(SMALL, requests=5, share=0.5))
    experiment = Experiment("tiny", TINY, CPU, "", points, 2)
    rows = measure(experiment, lambda what, *_: told.append(what), [Steady])
    ours, steady = ([row for row in rows if row.engine == engine] for engine in ("genwright", "steady"))
    at_once, at_share, at_rate, without = ours
    for row in (at_once, at_share, at_rate):
        assert (row.error, row.batch, row.samples) == (None, 6, 2)
        assert (row.prompt, row.longest_prompt, row.new, row.longest_new) == (5, 20, 3, 9)
        assert row.total == pytest.approx(row.prompt_per_second + row.tokens_per_second)
        assert 0 < row.ttft_p50 <= row.ttft_p99
        assert 0 < row.tbt_p50 <= row.tbt_p99
        assert row.decode is None
    assert (at_once.rate, at_rate.rate) == (None, 40.0)
    assert at_share.rate == pytest.approx(0.5 * 6 * at_once.tokens_per_second / sum(new for _, new in lengths(SMALL)))
    assert "no throughput" in without.error
    assert steady[0].first_token == 1.0
    assert (steady[1].ttft_p50, steady[1].ttft_p99, steady[1].tbt_p99) == pytest.approx((1.0, 1.0, 1.0))
    assert steady[1].rate == pytest.approx(0.5 * 6 / max(new for _, new in lengths(SMALL)))
    assert "genwright, 6 requests at 50% of the throughput" in told

"""Samples from moments, rows from samples, and a whole experiment."""

import pytest

from genwright import LLM
from genwright.bench.experiments import Experiment, Point
from genwright.bench.measure import Unfit, measure, prompts_for, sentence, timed
from genwright.bench.roofline import Roofline
from genwright.bench.rows import Row, Sample, fill
from genwright.bench.work import Work
from genwright.errors import UserError
from genwright.text.settings import EngineConfig

TINY = "random:stories15m,layers=1"


def test_decoding_is_timed_while_all_sequences_decode():
    # The second sequence starts a second late; from 2 to 4 both decode: 4 tokens in 2 s.
    sample = timed(0.0, 5.5, [[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0]])
    assert sample == Sample(5.5, 8, 2.0, 2.0)
    assert timed(10.0, 14.0, [[11.0, 12.0, 14.0]]).decode == pytest.approx(2 / 3)
    with pytest.raises(UserError, match="not decoded together"):
        timed(0.0, 9.0, [[1.0, 2.0], [3.0, 4.0]])


def test_figures_follow_from_medians_work_and_limits():
    samples = [Sample(2.0, 40, 0.5, 20.0), Sample(4.0, 40, 0.25, 10.0), Sample(1.0, 40, 1.0, 40.0)]
    work = Work(weights=3e9, cache=1e9, decode=6e9, prefill=5e9)
    row = fill(Row("x", "m", "cpu", batch=2, prompt=8, new=20), samples, work, Roofline(read=80e9, matmul=1e12))
    assert (row.decode, row.decode_low, row.decode_high, row.per_sequence) == (20.0, 10.0, 40.0, 10.0)
    assert row.tokens_per_second == 20.0
    assert row.prefill == 16 / 0.5
    assert (row.gbps, row.share) == (40.0, 0.5)  # 10 steps a second of 4 GB
    assert row.weights_gbps == 30.0
    assert (row.prefill_tflops, row.prefill_share) == (0.01, 0.01)
    assert row.decode_tflops == pytest.approx(0.06)


def test_prompts_never_repeat():
    points = (Point(4, 6, 1), Point(2, 6, 1))
    found = [tuple(p) for point in points for turn in range(-1, 3) for p in prompts_for(point, turn, 1000)]
    assert len(set(found)) == 24
    assert all(len(prompt) == 6 and max(prompt) < 1000 for prompt in found)


class Slow:
    """A contender that takes a second per token, by its own account."""

    name, load, dtype = "slow", 1.5, "ternary"

    def __init__(self, experiment: Experiment, llm: LLM):
        self.calls = 0

    def work(self, point: Point) -> Work:
        return Work(weights=2e9, cache=1e9, decode=1.0, prefill=1.0)

    def sample(self, prompts, new, seed):
        self.calls += 1
        if self.calls > 3:
            raise RuntimeError("the third time is enough\nand more")
        return timed(0.0, new, [[float(n + 1) for n in range(new)]] * len(prompts))


class Misfit:
    name = "misfit"

    def __init__(self, experiment: Experiment, llm: LLM):
        raise Unfit("it does not fit.")


def test_an_experiment_with_peers():
    told: list[str] = []
    traced: list[Sample] = []
    experiment = Experiment(
        "tiny", TINY, EngineConfig(device="cpu", dtype="float32"), "", (Point(1, 6, 5), Point(3, 70, 4)), 2
    )
    rows = measure(experiment, lambda what, *_: told.append(what), [Slow, Misfit], lambda run: traced.append(run()))
    ours = [row for row in rows if row.engine == "genwright"]
    assert [(row.batch, row.prompt, row.samples) for row in ours] == [(1, 6, 2), (3, 70, 2)]
    for row in ours:
        assert row.error is None
        assert row.dtype == "float32"
        for value in (row.load, row.first_token, row.first_call, row.prefill, row.decode, row.gbps, row.memory):
            assert value is not None
            assert value > 0
        assert row.first_token < row.first_call
    slow = [row for row in rows if row.engine == "slow"]
    assert slow[0].decode == 1.0
    assert (slow[0].dtype, slow[0].gbps) == ("ternary", 3.0)  # its own weights, and not ours
    assert slow[1].error == "RuntimeError: the third time is enough"
    assert next(row for row in rows if row.engine == "misfit").skipped
    assert traced[0].tokens == 12
    assert {"loading", "measuring the device"} <= set(told)


def test_sentences():
    assert sentence(MemoryError()) == "Memory ran out."
    assert sentence(UserError("so it is.")) == "so it is."
    assert sentence(KeyError()) == "KeyError."

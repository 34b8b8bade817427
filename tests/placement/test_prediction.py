"""Predictions of whole runs, on a fixed machine."""

from dataclasses import replace

import pytest
from placement.profiles import H200, OPT_13B, OPT_13B_INT4

from genwright.placement.footprint import Workload
from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy
from genwright.placement.prediction import Prediction, Timing, predict, readable, side_by_side

WORK = Workload(prompt_length=256, max_new_tokens=32, sequences=128)
IN_CPU_MEMORY = Policy(0, 100, 100, 0, 100, 0, micro_batch=32, micro_batches=4)


@pytest.mark.parametrize(("facts", "decode", "total"), [(OPT_13B, 281, 264), (OPT_13B_INT4, 1000, 756)])
def test_opt_13b_with_its_weights_in_cpu_memory(facts: ModelFacts, decode: float, total: float) -> None:
    """The bus limits decoding: 25.2 GB, or 7.1 GB in 4.5 bits, at 55.3 GB/s for 128 tokens."""
    found = predict(facts, H200, IN_CPU_MEMORY, WORK)
    assert found.decode_rate == pytest.approx(decode, rel=0.01)
    assert found.decode_rate == pytest.approx(128 * 55.3e9 / facts.blocks)
    assert found.total_rate == pytest.approx(total, rel=0.02)
    assert (found.prefill_limit, found.decode_limit) == ("the computation", "the bus to the GPU")
    assert found.prefill_rate == pytest.approx(128 * 256 / found.prefill_seconds)
    assert found.seconds == found.prefill_seconds + found.decode_seconds


def test_more_sequences_than_a_batch_run_one_batch_after_the_other() -> None:
    one, three = (predict(OPT_13B, H200, IN_CPU_MEMORY, replace(WORK, sequences=n)) for n in (128, 300))
    assert three.seconds == pytest.approx(3 * one.seconds)
    few = predict(OPT_13B, H200, IN_CPU_MEMORY, replace(WORK, sequences=5))
    assert few.decode_seconds == pytest.approx(one.decode_seconds)  # the bus does not care


def test_prediction_and_measurement_stand_side_by_side() -> None:
    predicted = Prediction(128, 256, 32, 1.0, 14.0, "the computation", "the bus to the GPU")
    shown = side_by_side(predicted, Timing(128, 256, 32, 1.25, 15.5)).splitlines()
    assert [line.split() for line in shown] == [
        ["predicted", "measured", "off", "by"],
        ["prefill", "32,768", "tok/s", "26,214", "tok/s", "+25%"],
        ["decode", "283", "tok/s", "256", "tok/s", "+11%"],
        ["total", "273", "tok/s", "245", "tok/s", "+12%"],
        ["latency", "15.0", "s", "16.8", "s", "-10%"],
    ]
    assert Timing(1, 1, 1, 1.0, 0.0).decode_rate == 0.0


def test_slow_and_fast_rates_are_readable() -> None:
    shown = [readable(value) for value in (0.0421, 0.5, 1, 99.94, 99.96, 12161.6)]
    assert shown == ["0.0421", "0.500", "1.00", "99.9", "100", "12,162"]

"""Predictions against formulas by hand, on a fixed machine."""

from dataclasses import replace

import pytest
from placement.profiles import GB, H200, LAPTOP, MIXTRAL, OPT_13B, OPT_13B_INT4, opt

from genwright.placement.footprint import Workload
from genwright.placement.machine import Machine
from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy
from genwright.placement.prediction import Prediction, Timing, predict, side_by_side, tier_parts

WORK = Workload(prompt_length=256, max_new_tokens=32, sequences=128)
IN_CPU_MEMORY = Policy(0, 100, 100, 0, 100, 0, micro_batch=32, micro_batches=4)


@pytest.mark.parametrize(("facts", "decode", "total"), [(OPT_13B, 281, 269), (OPT_13B_INT4, 1000, 808)])
def test_opt_13b_with_its_weights_in_cpu_memory(facts: ModelFacts, decode: float, total: float) -> None:
    """The bus limits decoding: 25.2 GB, or 7.1 GB in 4.5 bits, at 55.3 GB/s for 128 tokens."""
    found = predict(facts, H200, IN_CPU_MEMORY, WORK)
    assert found.decode_rate == pytest.approx(decode, rel=0.01)
    assert found.decode_rate == pytest.approx(128 * 55.3e9 / facts.blocks)
    assert found.total_rate == pytest.approx(total, rel=0.02)
    assert (found.prefill_limit, found.decode_limit) == ("the computation", "the bus to the GPU")
    assert found.prefill_rate == pytest.approx(128 * 256 / found.prefill_seconds)
    assert found.seconds == found.prefill_seconds + found.decode_seconds


def tier_bytes(facts: ModelFacts, machine: Machine, policy: Policy, work: Workload) -> dict[str, int]:
    parts = tier_parts(facts, machine.kind, policy, work)
    return {tier: sum(each.values()) for tier, each in parts.items()}


def seconds(policy: Policy, work: Workload = WORK, machine: Machine = H200) -> tuple[float, float]:
    found = predict(OPT_13B, machine, policy, work)
    return found.prefill_seconds, found.decode_seconds / (work.max_new_tokens - 1)


def test_what_is_on_disk_comes_at_the_rate_of_the_disk() -> None:
    prefill, step = seconds(Policy(0, 50, 100, 0, 100, 0, 32, 4))
    assert prefill == step == pytest.approx(0.5 * OPT_13B.blocks / 3e9)


def test_a_cache_in_cpu_memory_crosses_the_bus_at_its_mean_length() -> None:
    _, step = seconds(Policy(0, 100, 25, 75, 100, 0, 32, 4))
    cache = 128 * (256 + 16) * 40 * 20480
    assert step == pytest.approx((OPT_13B.blocks + 0.75 * cache) / 55.3e9)
    _, sparse = seconds(Policy(0, 100, 25, 75, 100, 0, 32, 4, sparsity=0.1))
    assert sparse == pytest.approx((OPT_13B.blocks + 0.75 * cache * 0.55) / 55.3e9)


def test_a_cache_on_disk_is_read_and_its_new_rows_are_written() -> None:
    _, step = seconds(Policy(100, 0, 0, 0, 100, 0, 32, 4))
    rows = 128 * 40 * 20480
    assert step == pytest.approx(rows * (256 + 16) / 3e9 + rows / 2e9)


def test_activations_cross_the_bus_both_ways() -> None:
    slow = replace(H200, rates=replace(H200.rates, to_host=1e9))
    prefill, step = seconds(Policy(100, 0, 100, 0, 0, 100, 32, 4), machine=slow)
    assert step == pytest.approx(128 * 40 * 10240 / 1e9) and prefill == pytest.approx(256 * step)


def test_without_overlap_times_add_up() -> None:
    parts = [
        OPT_13B.blocks * (0.5 / 55.3e9 + 0.5 / 55.3e9),
        OPT_13B.blocks * 0.5 / 3e9,
    ]
    _, overlapped = seconds(Policy(0, 50, 100, 0, 100, 0, 32, 4))
    _, added = seconds(Policy(0, 50, 100, 0, 100, 0, 32, 4, overlap=False))
    computed = added - sum(parts)
    assert overlapped == pytest.approx(max(parts)) and 0.02 < computed < 0.06


def test_pageable_weights_cross_at_their_own_rate() -> None:
    _, step = seconds(replace(IN_CPU_MEMORY, pin=False))
    assert step == pytest.approx(OPT_13B.blocks / 12e9)


def test_attention_on_the_cpu_reads_the_cache_there() -> None:
    policy = Policy(100, 0, 0, 100, 100, 0, 32, 4)
    cache = 128 * (256 + 16) * 40 * 20480
    (_, moved), (_, there) = seconds(policy), seconds(replace(policy, cpu_attention=True))
    assert moved == pytest.approx(cache / 55.3e9)
    assert cache / 20e9 < there < cache / 20e9 + 0.06
    assert predict(OPT_13B, H200, replace(policy, cpu_attention=True), WORK).decode_limit == "the computation"


def test_a_resident_model_reads_weights_and_cache_from_its_memory() -> None:
    _, step = seconds(Policy(), replace(WORK, sequences=1))
    read = OPT_13B.blocks + 2 * OPT_13B.head + 272 * 40 * 20480
    assert step == pytest.approx(read / 4.2e12 + 40 * 12 * 4e-6)
    packed = predict(OPT_13B_INT4, H200, Policy(), replace(WORK, sequences=1))
    assert packed.decode_seconds / 31 < 0.5 * step


def test_of_experts_those_that_are_chosen_cross_the_bus() -> None:
    dense = 32 * (MIXTRAL.block - MIXTRAL.expert_bytes)
    for count, chosen in ((1, 2 / 8), (4, 1 - 0.75**4), (64, 1.0)):
        found = predict(MIXTRAL, H200, Policy(0, 100, micro_batch=count), Workload(8, 9, count))
        moved = dense + chosen * 32 * MIXTRAL.expert_bytes
        assert found.decode_seconds == pytest.approx(8 * moved / 55.3e9, rel=1e-6)


def test_a_long_prefill_moves_the_weights_more_than_once() -> None:
    once, _ = seconds(Policy(0, 0, 100, 0, 100, 0, 32, 4))
    thrice, _ = seconds(Policy(0, 0, 100, 0, 100, 0, 32, 4), replace(WORK, prompt_length=768))
    assert thrice == pytest.approx(3 * once)


def test_more_sequences_than_a_batch_run_one_batch_after_the_other() -> None:
    one, three = (predict(OPT_13B, H200, IN_CPU_MEMORY, replace(WORK, sequences=n)) for n in (128, 300))
    assert three.seconds == pytest.approx(3 * one.seconds)
    few = predict(OPT_13B, H200, IN_CPU_MEMORY, replace(WORK, sequences=5))
    assert few.decode_seconds == pytest.approx(one.decode_seconds)  # the bus does not care


def test_bytes_of_every_tier() -> None:
    found = tier_bytes(OPT_13B, H200, Policy(20, 30, 50, 40, 100, 0, 32, 4), WORK)
    block, cache = 12 * 5120**2 * 2, 128 * 320 * 40 * 20480  # five pages of 64 tokens
    layer = 3 * 1.25 * 32 * 320 * 20480
    assert found["disk"] == pytest.approx(0.5 * 40 * block + 13 / 128 * cache)  # 10 % are 12.8 sequences
    assert found["cpu"] == pytest.approx(0.3 * 40 * block + 52 / 128 * cache + 0.5 * 2 * block + 13 / 128 * layer)
    fixed = OPT_13B.outer + 4096 * OPT_13B.working + 128 * OPT_13B.logits + 2**28 + 2 * block + layer
    held = 0.2 * 40 * block + 0.5 * cache + 32768 * 10240
    assert found["gpu"] == pytest.approx(fixed + held)


def test_a_resident_model_stages_nothing() -> None:
    found = tier_bytes(OPT_13B, H200, Policy(), WORK)
    assert found["cpu"] == found["disk"] == 0
    assert found["gpu"] < OPT_13B.outer + OPT_13B.blocks + 128 * 320 * 40 * 20480 + 2 * GB


def test_without_a_gpu_the_disk_is_read_into_the_memory_that_computes() -> None:
    facts = opt(1024, 24)
    found = predict(facts, LAPTOP, Policy(50, 0, 100, 0, 100, 0), Workload(64, 9, 1))
    assert found.decode_seconds == pytest.approx(8 * 0.5 * facts.blocks / 1.5e9)
    assert found.decode_limit == "the disk"
    assert tier_bytes(facts, LAPTOP, Policy(50), Workload(64, 9, 1))["cpu"] == 0


def test_windows_shorten_what_is_read_and_held() -> None:
    local = replace(opt(1024, 4), windows=(128, 128, 128, None))
    assert local.keys(1000) == 3 * 128 + 1000 and local.keys(100) == 400
    assert local.cache_held(1000) == local.cache_row * 64 * (3 * 3 + 16)
    assert local.pairs(3) == 4 * 6 and local.pairs(256) == 3 * (128 * 129 / 2 + 128 * 128) + 256 * 257 / 2


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

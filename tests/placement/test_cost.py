"""Seconds against formulas by hand, on a fixed machine."""

from dataclasses import replace

import pytest
from placement.profiles import H200, LAPTOP, MIXTRAL, OPT_13B, OPT_13B_INT4, opt

from genwright.placement.footprint import Workload
from genwright.placement.machine import Machine
from genwright.placement.policy import Policy
from genwright.placement.prediction import predict

WORK = Workload(prompt_length=256, max_new_tokens=32, sequences=128)
IN_CPU_MEMORY = Policy(0, 100, 100, 0, 100, 0, micro_batch=32, micro_batches=4)


def seconds(policy: Policy, work: Workload = WORK, machine: Machine = H200) -> tuple[float, float]:
    found = predict(OPT_13B, machine, policy, work)
    return found.prefill_seconds, found.decode_seconds / (work.max_new_tokens - 1)


def test_what_is_on_disk_comes_at_the_rate_of_the_disk() -> None:
    prefill, step = seconds(Policy(0, 50, 100, 0, 100, 0, 32, 4))
    assert prefill == step == pytest.approx(0.5 * OPT_13B.blocks / 3e9)


def test_a_cache_in_cpu_memory_crosses_the_bus_in_whole_pages_at_its_mean_length() -> None:
    _, step = seconds(Policy(0, 100, 25, 75, 100, 0, 32, 4))
    cache = 128 * 5 * 64 * 40 * 20480  # 272 tokens, in five pages
    assert step == pytest.approx((OPT_13B.blocks + 0.75 * cache) / 55.3e9)
    _, sparse = seconds(Policy(0, 100, 25, 75, 100, 0, 32, 4, sparsity=0.1))
    assert sparse == pytest.approx((OPT_13B.blocks + 0.75 * cache * 0.55) / 55.3e9)


def test_a_cache_on_disk_is_read_and_its_new_rows_are_written() -> None:
    _, step = seconds(Policy(100, 0, 0, 0, 100, 0, 32, 4))
    rows = 128 * 40 * 20480
    assert step == pytest.approx(rows * 5 * 64 / 3e9 + rows / 2e9)


def test_activations_cross_the_bus_both_ways() -> None:
    slow = replace(H200, rates=replace(H200.rates, to_host=5e8))
    prefill, step = seconds(Policy(100, 0, 100, 0, 0, 100, 32, 4), machine=slow)
    assert step == pytest.approx(128 * 40 * 10240 / 5e8) and prefill == pytest.approx(256 * step)


def test_the_host_launches_each_micro_batch_of_each_block() -> None:
    """Beside what was measured on an H200, which needed 7.08 us for a small operation."""
    slow = replace(H200, rates=replace(H200.rates, call=7.08e-6))
    for shares, measured in (((100, 0, 0, 100), 0.616e-3), ((0, 100, 100, 0), 0.710e-3), ((0, 100, 0, 100), 0.907e-3)):
        policy = Policy(99, 1, *shares, micro_batch=4, micro_batches=32)
        found = predict(OPT_13B, slow, policy, replace(WORK, prompt_length=16, max_new_tokens=9))
        assert found.decode_limit == "the launches"
        assert found.decode_seconds / (8 * 40 * 32) == pytest.approx(measured, rel=0.07)
    assert predict(OPT_13B, slow, Policy(), WORK).decode_limit == "the computation"  # one launch of a CUDA graph
    few = Policy(99, 1, 100, 0, 100, 0, 4, 32, overlap=False)
    assert seconds(few, machine=slow)[1] == pytest.approx(40 * 32 * 56 * 7.08e-6)  # beside what moves and computes


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
    assert moved == pytest.approx(cache * 320 / 272 / 55.3e9)  # in whole pages
    assert cache / 20e9 < there < cache / 20e9 + 0.06
    assert predict(OPT_13B, H200, replace(policy, cpu_attention=True), WORK).decode_limit == "the computation"


def test_a_resident_model_reads_weights_and_cache_from_its_memory() -> None:
    _, step = seconds(Policy(), replace(WORK, sequences=1))
    read = OPT_13B.blocks + 2 * OPT_13B.head + 272 * 40 * 20480
    assert step == pytest.approx(read / 4.2e12)
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


def test_without_a_gpu_the_disk_is_read_into_the_memory_that_computes() -> None:
    facts = opt(1024, 24)
    found = predict(facts, LAPTOP, Policy(50, 0, 100, 0, 100, 0), Workload(64, 9, 1))
    assert found.decode_seconds == pytest.approx(8 * 0.5 * facts.blocks / 1.5e9)
    assert found.decode_limit == "the disk"

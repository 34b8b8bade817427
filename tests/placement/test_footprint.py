"""The bytes of a placed model against sums by hand."""

import pytest
from placement.profiles import GB, H200, LAPTOP, OPT_13B, opt

from genwright.placement.footprint import Workload
from genwright.placement.machine import Machine
from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy
from genwright.placement.prediction import tier_parts

WORK = Workload(prompt_length=256, max_new_tokens=32, sequences=128)


def tier_bytes(facts: ModelFacts, machine: Machine, policy: Policy, work: Workload) -> dict[str, int]:
    parts = tier_parts(facts, machine.kind, policy, work)
    return {tier: sum(each.values()) for tier, each in parts.items()}


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


def test_without_a_gpu_the_disk_needs_no_cpu_memory_of_its_own() -> None:
    facts = opt(1024, 24)
    assert tier_bytes(facts, LAPTOP, Policy(50), Workload(64, 9, 1))["cpu"] == 0

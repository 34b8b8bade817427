"""Plans keep their budgets, and no policy of a coarse grid is faster."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from placement.profiles import GB, H200, LAPTOP, MIXTRAL, OPT_13B, OPT_13B_INT4, opt

from genwright.errors import UserError
from genwright.placement.footprint import Workload
from genwright.placement.machine import Disk, Machine
from genwright.placement.model_facts import ModelFacts
from genwright.placement.planner import Budgets, Plan, plan
from genwright.placement.policy import Policy
from genwright.placement.prediction import predict, tier_parts

QUARTERS = [(gpu, cpu) for gpu, cpu in product((0, 50, 100), repeat=2) if gpu + cpu <= 100]
SHAPES = [(1, 1), (8, 4), (32, 1), (32, 4)]


def tier_bytes(facts: ModelFacts, machine: Machine, policy: Policy, work: Workload) -> dict[str, int]:
    parts = tier_parts(facts, machine.kind, policy, work)
    return {tier: sum(each.values()) for tier, each in parts.items()}


def within(found: dict[str, int], machine: Machine, budgets: Budgets) -> bool:
    if not machine.has_gpu:
        return found["gpu"] + found["cpu"] <= budgets.cpu and found["disk"] <= budgets.disk
    return found["gpu"] <= budgets.gpu and found["cpu"] <= budgets.cpu and found["disk"] <= budgets.disk


def best_of_grid(facts: ModelFacts, machine: Machine, budgets: Budgets, work: Workload) -> float:
    """The highest throughput of any policy on the grid, each predicted for itself."""
    best = 0.0
    for weights, cache, activations, shape in product(QUARTERS, QUARTERS, QUARTERS, SHAPES):
        if shape[0] * shape[1] > work.sequences:
            continue
        for cpu_attention in {False, machine.has_gpu and cache[1] > 0}:
            policy = Policy(*weights, *cache, *activations, *shape, cpu_attention=cpu_attention)
            batch = replace(work, sequences=policy.batch)
            if within(tier_bytes(facts, machine, policy, batch), machine, budgets):
                best = max(best, predict(facts, machine, policy, batch).total_rate)
    return best


CASES = [
    (OPT_13B, H200, Budgets(16 * GB, 64 * GB, 0), Workload(256, 32, 128)),
    (OPT_13B, H200, Budgets(8 * GB, 16 * GB, 100 * GB), Workload(512, 32, 128)),
    (OPT_13B_INT4, H200, Budgets(16 * GB, 64 * GB, 0), Workload(512, 64, 128)),
    (OPT_13B, H200, Budgets(40 * GB, 64 * GB, 0), Workload(512, 128, 256)),
    (opt(12288, 96, 4.5), H200, Budgets(17 * GB, 115 * GB, 0), Workload(128, 16, 64)),
    (MIXTRAL, H200, Budgets(24 * GB, 110 * GB, 0), Workload(128, 32, 64)),
    (opt(2048, 24), LAPTOP, Budgets(0, 2 * GB, 50 * GB), Workload(128, 32, 32)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_no_policy_of_the_grid_is_faster(case: int) -> None:
    facts, machine, budgets, work = CASES[case]
    found = plan(facts, machine, budgets, work)
    assert found.prediction.total_rate >= 0.99 * best_of_grid(facts, machine, budgets, work) > 0
    check(found, facts, machine, budgets, work)


def check(found: Plan, facts: ModelFacts, machine: Machine, budgets: Budgets, work: Workload) -> None:
    """A plan keeps its budgets, and says of itself what anyone else would."""
    count = found.prediction.sequences
    assert 1 <= count <= work.sequences and found.policy.batch in (0, count)
    batch = replace(work, sequences=count)
    assert found.bytes == tier_bytes(facts, machine, found.policy, batch)
    assert within(found.bytes, machine, budgets)
    assert found.prediction == predict(facts, machine, found.policy, batch)
    if not machine.has_gpu:
        assert found.policy.weights_cpu == found.policy.cache_cpu == found.policy.activations_cpu == 0
    if not budgets.disk:
        assert not any(found.policy.shares(what)[2] for what in ("weights", "cache", "activations"))


def test_random_machines_models_and_budgets() -> None:
    random_ = random.Random(0)
    planned = 0
    for _ in range(6):
        facts = opt(256 * random_.randint(2, 32), random_.randint(4, 64), random_.choice((16, 4.5)))
        scale = {each: 10 ** random_.uniform(-1, 1) for each in ("to_device", "to_host", "host_attention", "host_read")}
        faster = {name: getattr(H200.rates, name) * by for name, by in scale.items()}
        machine = Machine(
            replace(H200.rates, **faster), Disk(10 ** random_.uniform(8, 10), 10 ** random_.uniform(8, 10))
        )
        sizes = (facts.blocks * random_.choice((0.0, 0.1, 0.5, 2.0)) for _ in range(3))
        budgets = Budgets(*(int(size + extra) for size, extra in zip(sizes, (4 * GB, GB, 0), strict=True)))
        work = Workload(random_.randint(1, 600), random_.randint(1, 100), random_.randint(1, 130))
        try:
            found = plan(facts, machine, budgets, work)
        except UserError:
            assert best_of_grid(facts, machine, budgets, work) == 0
            continue
        planned += 1
        check(found, facts, machine, budgets, work)
        assert found.prediction.total_rate >= 0.99 * best_of_grid(facts, machine, budgets, work)
    assert planned >= 3


def test_a_model_that_fits_is_resident() -> None:
    found = plan(OPT_13B, H200, Budgets(100 * GB, 0, 0), Workload(256, 32, 64))
    assert found.policy == Policy() and found.prediction.sequences == 64


def test_with_room_for_some_sequences_only_they_run_resident() -> None:
    """The bus is so much slower than the GPU's memory that a larger batch would not pay."""
    found = plan(OPT_13B, H200, Budgets(100 * GB, 500 * GB, 0), Workload(1024, 128, 256))
    assert found.policy.resident and 32 <= found.prediction.sequences < 256


def test_nothing_is_on_disk_without_a_reason() -> None:
    found = plan(OPT_13B, H200, Budgets(16 * GB, 200 * GB, 900 * GB), Workload(256, 32, 1))
    assert found.bytes["disk"] == 0 and found.policy.activations_gpu == 100
    assert found.policy.weights_gpu > 50


def test_a_model_with_no_room_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"^The weights take 25\.70 GB .* but 4\.00 GB of GPU memory, 9\.00 GB of CPU "):
        plan(OPT_13B, H200, Budgets(4 * GB, 9 * GB, 0), Workload(256, 32, 64))
    with pytest.raises(UserError, match=r" but 0\.10 GB of CPU memory and 0\.00 GB of disk have no room"):
        plan(OPT_13B, LAPTOP, Budgets(0, GB // 10, 0), Workload(256, 32, 64))


def test_more_memory_is_never_slower() -> None:
    rates = [
        plan(OPT_13B, H200, Budgets(gpu * GB, 64 * GB, 0), Workload(256, 32, 64)).prediction.total_rate
        for gpu in (6, 8, 12, 16, 24, 32, 48, 64)
    ]
    assert all(after >= 0.99 * before for before, after in np.lib.stride_tricks.sliding_window_view(rates, 2))

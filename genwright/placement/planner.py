"""Planner: the policy with the highest throughput within the budgets of GPU memory, CPU memory and disk.

For each shape of micro-batches the time of a run is the largest of what overlaps, and linear in the shares, so that the
best shares are a linear program (FlexGen, Sheng et al., 2023, section 4.3). Shares are whole percentages: the programs
without that condition bound what a shape can reach, and the best shapes are solved with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from genwright.errors import UserError
from genwright.placement.cost import PLACES, SHARES, WHAT, Cost, Vector, Workload
from genwright.placement.machine import Machine
from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy
from genwright.placement.prediction import Prediction, predict, tier_bytes

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # of micro-batches
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of them
CLOSE = 0.01  # a smaller batch is preferred if it loses no more throughput than this
TIDY = 1e-5  # of the time, for what is not on the GPU: what does not cost time stays there


@dataclass(frozen=True)
class Budgets:
    """Bytes that may be used; without a GPU, `gpu` is 0 and everything runs in CPU memory."""

    gpu: int
    cpu: int
    disk: int


@dataclass(frozen=True)
class Plan:
    """A policy, what it is expected to reach with a full batch, and the bytes that it takes in each tier."""

    policy: Policy
    prediction: Prediction
    bytes: dict[str, int]

    @property
    def step_tokens(self) -> int:
        """Tokens of the largest step, in which all prompts of a batch are read."""
        return Workload(self.prediction.prompt_length, 0, self.prediction.sequences).step_tokens


def plan(facts: ModelFacts, machine: Machine, budgets: Budgets, work: Workload) -> Plan:
    """The best plan for at most `work.sequences` sequences at a time."""
    if (resident := _plan(facts, machine, Policy(), work)) and _within(resident, machine, budgets):
        return resident
    plans: list[Plan] = []
    fastest = 0.0
    for bound, cost in sorted(_bounds(facts, machine, budgets, work), key=lambda found: found[0]):
        if bound * fastest > 1 + CLOSE:  # as no later shape can be as fast
            break
        if (found := _solve(cost, budgets, whole=True)) is not None:
            plans.append(_plan(facts, machine, _policy(found[1], cost), cost.work))
            fastest = max(fastest, plans[-1].prediction.total_rate)
    if not plans:
        raise UserError(_too_large(facts, machine, budgets, work))
    close = (each for each in plans if each.prediction.total_rate > fastest * (1 - CLOSE))
    return min(close, key=lambda each: (each.prediction.sequences, -each.prediction.total_rate))


def _plan(facts: ModelFacts, machine: Machine, policy: Policy, work: Workload) -> Plan:
    return Plan(policy, predict(facts, machine, policy, work), tier_bytes(facts, machine, policy, work))


def _within(found: Plan, machine: Machine, budgets: Budgets) -> bool:
    used = found.bytes
    if not machine.has_gpu:
        return used["gpu"] + used["cpu"] <= budgets.cpu and used["disk"] <= budgets.disk
    return all(used[tier] <= getattr(budgets, tier) for tier in PLACES)


def _shapes(work: Workload, machine: Machine) -> Iterator[Policy]:
    """Micro-batches to try, with attention on the GPU and on the CPU."""
    sizes = sorted({min(size, work.sequences) for size in SIZES})
    for size, count in ((size, count) for size in sizes for count in COUNTS if size * count <= work.sequences):
        for cpu_attention in (False, True) if machine.has_gpu else (False,):
            yield Policy(micro_batch=size, micro_batches=count, cpu_attention=cpu_attention)


def _bounds(facts: ModelFacts, machine: Machine, budgets: Budgets, work: Workload) -> Iterator[tuple[float, Cost]]:
    """The seconds per new token that each shape cannot go below."""
    for shape in _shapes(work, machine):
        cost = Cost(facts, machine, replace(work, sequences=shape.batch), shape)
        if (found := _solve(cost, budgets, whole=False)) is not None:
            yield found[0] / (shape.batch * work.max_new_tokens), cost


def _solve(cost: Cost, budgets: Budgets, whole: bool) -> tuple[float, Vector] | None:
    """Seconds and shares, in percent, of the best placement of a shape; None if none is within the budgets."""
    steps, prefill, decode = cost.work.max_new_tokens - 1, cost.prefill(), cost.decode()
    rows, upper = [], []
    for column, costs in enumerate((prefill, decode)):
        for vector in costs.values():  # no phase is shorter than anything that it uses
            rows.append([*vector[:-1] / 100, *(-1.0 if column == time else 0.0 for time in range(2))])
            upper.append(-vector[-1])
    held = cost.bytes()
    if not cost.machine.has_gpu:
        held = {"cpu": held["gpu"] + held["cpu"], "disk": held["disk"]}
    for tier, vector in held.items():
        scale = 1e-9  # in GB, as the solver prefers numbers of a moderate size
        rows.append([*vector[:-1] / 100 * scale, 0.0, 0.0])
        upper.append((getattr(budgets, tier) - vector[-1]) * scale)
    sums = [[*(float(name.startswith(what)) for name in SHARES), 0.0, 0.0] for what in WHAT]
    away = np.array([PLACES.index(name.rpartition("_")[2]) for name in SHARES])
    slowest = sum(float(max(vector[-1] for vector in costs.values())) for costs in (prefill, decode))
    highest = [0.0 if name.endswith("cpu") and not cost.machine.has_gpu else 100.0 for name in SHARES]
    found = milp(
        [*(TIDY * slowest * away / 900), 1.0, float(steps)],
        constraints=[LinearConstraint(np.array(rows), ub=np.array(upper)), LinearConstraint(sums, 100.0, 100.0)],
        bounds=Bounds(0.0, [*highest, np.inf, np.inf]),
        integrality=[*([int(whole)] * len(SHARES)), 0, 0],
    )
    if found.x is None:
        return None
    return float(found.x[-2] + steps * found.x[-1]), found.x[:-2]


def _policy(percent: Vector, cost: Cost) -> Policy:
    values: dict[str, Any] = dict(zip(SHARES, percent, strict=True))
    policy = replace(cost.policy, **{name: round(x) for name, x in values.items() if not name.endswith("disk")})
    if policy.resident:
        return Policy()
    # Attention has no place on the CPU if no cache is there.
    return replace(policy, cpu_attention=policy.cpu_attention and policy.cache_cpu > 0)


def _too_large(facts: ModelFacts, machine: Machine, budgets: Budgets, work: Workload) -> str:
    cache = facts.cache_held(work.longest)
    gpu = f"{budgets.gpu / 1e9:.1f} GB of GPU memory, " if machine.has_gpu else ""
    return (
        f"The weights take {(facts.outer + facts.blocks) / 1e9:.1f} GB and the cache of one sequence "
        f"{cache / 1e9:.2f} GB, but {gpu}{budgets.cpu / 1e9:.1f} GB of CPU memory and {budgets.disk / 1e9:.1f} GB of "
        "disk have no room for them and the buffers on the way; raise a budget, shorten the sequences or pack the "
        "weights (--quant int4)."
    )

"""Planner: the policy with the highest throughput within the budgets of GPU memory, CPU memory and disk.

For each shape of micro-batches the time of a run is the largest of what overlaps, and linear in the shares, so that the
best shares are a linear program (FlexGen, Sheng et al., 2023, section 4.3). Shares are whole percentages: the programs
without that condition bound what a shape can reach, and the best shapes are solved with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from genwright.errors import UserError
from genwright.placement.cost import COMPUTE, Cost
from genwright.placement.footprint import Workload
from genwright.placement.machine import Machine
from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy
from genwright.placement.prediction import Prediction, predict, tier_parts
from genwright.placement.shares import CACHE, PLACES, SHARES, WHAT, Vector

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # of micro-batches
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of them
CLOSE = 0.01  # a simpler policy is preferred if it loses no more throughput than this
TIDY = 1e-7  # of the time, for a percent in CPU memory: what gains no time stays on the GPU
TOLERANCE = 1e-5  # of a budget, more than the solver's


@dataclass(frozen=True)
class Budgets:
    """Bytes that may be used; without a GPU, `gpu` is 0 and everything runs in CPU memory."""

    gpu: int
    cpu: int
    disk: int


@dataclass(frozen=True)
class Space:
    """Policies to search together, because they have buffers for the same moves."""

    places: tuple[str, ...]
    weights_move: bool
    cache_moves: bool

    def allows(self, share: str) -> bool:
        """Whether a share may be above 0."""
        what, _, place = share.partition("_")
        moves = {"weights": self.weights_move, "cache": self.cache_moves}.get(what, True)
        return place == "gpu" or (moves and place in self.places)


@dataclass(frozen=True)
class Plan:
    """A policy, what it is expected to reach with a full batch, and what it takes of each tier."""

    policy: Policy
    prediction: Prediction
    parts: dict[str, dict[str, int]]  # bytes in each tier: of weights, cache, activations and buffers

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes in each tier."""
        return {tier: sum(parts.values()) for tier, parts in self.parts.items()}


def plan(facts: ModelFacts, machine: Machine, budgets: Budgets, work: Workload) -> Plan:
    """The best plan for at most `work.sequences` sequences at a time; a model that has room for all is resident."""
    resident = _plan(facts, machine, Policy(), work)
    if _within(resident, machine, budgets):
        return resident
    fewer = (_plan(facts, machine, Policy(), replace(work, sequences=count)) for count in _sizes(work))
    plans = [each for each in fewer if _within(each, machine, budgets)]
    fastest = max((each.prediction.total_rate for each in plans), default=0.0)
    for bound, cost, space in sorted(_bounds(facts, machine, budgets, work), key=lambda found: found[0]):
        if bound * fastest > 1 + CLOSE:  # as no later shape can be as fast
            break
        if (found := _solve(cost, space, budgets, whole=True)) is not None:
            plans.append(_plan(facts, machine, _policy(found[1], cost), cost.work))
            fastest = max(fastest, plans[-1].prediction.total_rate)
    if not plans:
        raise UserError(_too_large(facts, machine, budgets, work))
    close = (each for each in plans if each.prediction.total_rate > fastest * (1 - CLOSE))
    return min(close, key=lambda each: (_parts(each.policy), each.prediction.sequences, each.policy.micro_batches))


def _plan(facts: ModelFacts, machine: Machine, policy: Policy, work: Workload) -> Plan:
    return Plan(policy, predict(facts, machine, policy, work), tier_parts(facts, machine.kind, policy, work))


def _within(found: Plan, machine: Machine, budgets: Budgets) -> bool:
    used = found.bytes
    if not machine.has_gpu:
        used["cpu"] += used.pop("gpu")
    return all(count <= getattr(budgets, tier) for tier, count in used.items())


def _parts(policy: Policy) -> int:
    """How many parts the weights, the cache and the activations are in, and attention with them."""
    return sum(share > 0 for what in WHAT for share in policy.shares(what)) + policy.cpu_attention


def _sizes(work: Workload) -> list[int]:
    return sorted({min(size, work.sequences) for size in SIZES})


def _bounds(
    facts: ModelFacts, machine: Machine, budgets: Budgets, work: Workload
) -> Iterator[tuple[float, Cost, Space]]:
    """The seconds per new token that each shape cannot go below in each space."""
    for size, count, cpu_attention in product(_sizes(work), COUNTS, (False, True)):
        if size * count > work.sequences:
            continue
        shape = Policy(micro_batch=size, micro_batches=count, cpu_attention=cpu_attention)
        cost = Cost(facts, machine, replace(work, sequences=shape.batch), shape)
        for space in _spaces(machine, budgets):
            if cpu_attention and not (space.cache_moves and machine.has_gpu):
                continue
            if (found := _solve(cost, space, budgets, whole=False)) is not None:
                yield found[0] / (shape.batch * work.max_new_tokens), cost, space


def _spaces(machine: Machine, budgets: Budgets) -> Iterator[Space]:
    memory = ("gpu", "cpu") if machine.has_gpu else ("gpu",)
    for weights_move, cache_moves in ((True, False), (False, True), (True, True)):
        for places in (memory, (*memory, "disk")) if budgets.disk else (memory,):
            yield Space(places, weights_move, cache_moves)


def _solve(cost: Cost, space: Space, budgets: Budgets, whole: bool) -> tuple[float, Vector] | None:
    """Seconds and shares, in percent, of the best placement of a shape; None if none is within the budgets.

    The unknowns are the nine shares, the numbers of sequences whose cache is in each tier, and the seconds of the
    prefill and of a decoding step.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    steps, phases = cost.work.max_new_tokens - 1, (cost.prefill(), cost.decode())
    held = cost.footprint.bytes(space.weights_move, space.cache_moves)
    rows, upper = [], []
    for seconds, phase in zip(([-1.0, 0.0], [0.0, -1.0]), phases, strict=True):
        for vector in phase.values():  # no phase is shorter than anything that it uses
            rows.append([*vector[:-1] / 100, 0.0, 0.0, 0.0, *seconds])
            upper.append(-vector[-1])
    if not cost.machine.has_gpu:
        held["cpu"] += held.pop("gpu")
    for tier, vector in held.items():  # as a part of the budget, because the solver's tolerance is an absolute one
        budget, others = getattr(budgets, tier), np.where(CACHE, 0.0, vector[:-1] / 100)
        rows.append([*np.array([*others, *vector[:-1][CACHE] / cost.work.sequences]) / max(budget, 1), 0.0, 0.0])
        upper.append((budget * (1 - TOLERANCE) - vector[-1]) / max(budget, 1))
    for tier, counted in zip(np.flatnonzero(CACHE), np.eye(3), strict=True):  # share <= sequences
        rows.append([*np.eye(len(SHARES))[tier] * cost.work.sequences / 100, *-counted, 0.0, 0.0])
        upper.append(0.0)
    sums = [[*(float(name.startswith(what)) for name in SHARES), *[0.0] * 5] for what in WHAT]
    where = [name.rpartition("_")[2] for name in SHARES]
    shortest = phases[0][COMPUTE][-1] + steps * phases[1][COMPUTE][-1]
    found = milp(
        [*(TIDY * shortest * PLACES.index(place) for place in where), 0.0, 0.0, 0.0, 1.0, steps],
        constraints=[LinearConstraint(np.array(rows), ub=np.array(upper)), LinearConstraint(sums, 100.0, 100.0)],
        bounds=Bounds(0.0, [*(100.0 * space.allows(name) for name in SHARES), *[np.inf] * 5]),
        integrality=[*([int(whole)] * (len(SHARES) + 3)), 0, 0],
    )
    return None if found.x is None else (float(found.x[-2] + steps * found.x[-1]), found.x[: len(SHARES)])


def _policy(percent: Vector, cost: Cost) -> Policy:
    values: dict[str, Any] = dict(zip(SHARES, percent, strict=True))
    policy = replace(cost.policy, **{name: round(x) for name, x in values.items() if not name.endswith("disk")})
    if policy.resident:
        return Policy()
    # Attention has no place on the CPU if no cache is there.
    return replace(policy, cpu_attention=policy.cpu_attention and policy.cache_cpu > 0)


def _too_large(facts: ModelFacts, machine: Machine, budgets: Budgets, work: Workload) -> str:
    cache = facts.cache_held(work.longest)
    gpu = f"{budgets.gpu / 1e9:.2f} GB of GPU memory, " if machine.has_gpu else ""
    return (
        f"The weights take {(facts.outer + facts.blocks) / 1e9:.2f} GB and the cache of one sequence "
        f"{cache / 1e9:.2f} GB, but {gpu}{budgets.cpu / 1e9:.2f} GB of CPU memory and {budgets.disk / 1e9:.2f} GB of "
        "disk have no room for them and the buffers on the way; raise a budget, shorten the sequences or pack the "
        "weights (--quant int4)."
    )

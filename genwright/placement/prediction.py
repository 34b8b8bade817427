"""Timing: seconds and rates of a run, predicted or measured, and both side by side."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from genwright.placement.cost import LAUNCHES, Cost, Costs
from genwright.placement.footprint import Footprint, Workload
from genwright.placement.machine import Machine
from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy
from genwright.placement.shares import Vector, share_vector


@dataclass(frozen=True)
class Timing:
    """Seconds of a run. Rates are FlexLLMGen's: the first new token belongs to the prefill."""

    sequences: int
    prompt_length: int
    max_new_tokens: int
    prefill_seconds: float
    decode_seconds: float

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    @property
    def prefill_rate(self) -> float:
        """Tokens of prompts per second of prefill."""
        return self.sequences * self.prompt_length / self.prefill_seconds

    @property
    def decode_rate(self) -> float:
        """New tokens per second of decoding; 0 if there is only the first."""
        return self.sequences * (self.max_new_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def total_rate(self) -> float:
        """New tokens per second of the whole run."""
        return self.sequences * self.max_new_tokens / self.seconds


@dataclass(frozen=True)
class Prediction(Timing):
    """A predicted timing, and what limits its two phases."""

    prefill_limit: str
    decode_limit: str


def predict(facts: ModelFacts, machine: Machine, policy: Policy, work: Workload) -> Prediction:
    """The timing of a policy; more sequences than its batch run one batch after the other."""
    cost = Cost(facts, machine, _batch(policy, work), policy)
    shares, rounds = share_vector(policy), ceil(work.sequences / cost.work.sequences)
    phases = [cost.prefill(), cost.decode()]
    if policy.resident:  # a CUDA graph is one launch
        phases = [{name: each for name, each in costs.items() if name != LAUNCHES} for costs in phases]
    (prefill, prefill_limit), (step, decode_limit) = (_seconds(costs, shares, policy.overlap) for costs in phases)
    return Prediction(
        work.sequences,
        work.prompt_length,
        work.max_new_tokens,
        rounds * prefill,
        rounds * (work.max_new_tokens - 1) * step,
        prefill_limit,
        decode_limit,
    )


def tier_parts(
    facts: ModelFacts, kind: str, policy: Policy, work: Workload, step_tokens: int | None = None
) -> dict[str, dict[str, int]]:
    """What one batch of a policy takes of each tier: bytes of weights, cache, activations and buffers."""
    return Footprint(facts, kind, _batch(policy, work), policy, step_tokens).parts()


def _batch(policy: Policy, work: Workload) -> Workload:
    return replace(work, sequences=min(policy.batch or work.sequences, work.sequences))


def side_by_side(predicted: Timing, measured: Timing) -> str:
    """A table of both."""
    rows = [f"{'':<10}{'predicted':>14}{'measured':>14}{'off by':>9}"]
    names: Mapping[str, tuple[str, str]] = {
        "prefill": ("prefill_rate", "tok/s"),
        "decode": ("decode_rate", "tok/s"),
        "total": ("total_rate", "tok/s"),
        "latency": ("seconds", "s"),
    }
    for name, (field, unit) in names.items():
        ours, theirs = getattr(predicted, field), getattr(measured, field)
        off = f"{ours / theirs - 1:+.0%}" if theirs else ""
        left, right = (f"{readable(value)} {unit}" for value in (ours, theirs))
        rows.append(f"{name:<10}{left:>14}{right:>14}{off:>9}")
    return "\n".join(rows)


def readable(value: float) -> str:
    """A rate or a time with three digits or more."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def _seconds(costs: Costs, shares: Vector, overlap: bool) -> tuple[float, str]:
    """How long a phase takes, and what takes longest in it; launches overlap with all else in any case."""
    each = {name: float(vector @ shares) for name, vector in costs.items()}
    limit, launches = max(each, key=lambda name: each[name]), each.get(LAUNCHES, 0.0)
    return (each[limit] if overlap else max(launches, sum(each.values()) - launches)), limit

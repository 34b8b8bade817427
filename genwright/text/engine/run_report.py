"""RunReport: how fast a run of a placed model was, what it moved, and the peak of each tier."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from genwright.placement.footprint import Workload
from genwright.placement.prediction import Timing, readable, side_by_side
from genwright.placement.tiers import Tier
from genwright.text.engine.request import Result
from genwright.text.engine.streamed import StreamedExecutor


@dataclass(frozen=True)
class RunReport:
    """A run's figures; a prefill ends with the first token of the last prompt."""

    policy: str
    seconds: float
    tokens: int  # of all answers
    moved: dict[str, int]  # bytes, such as those from "CPU to GPU"; without a GPU the first tier is "memory"
    peak: dict[str, int]  # bytes of each tier since the model was loaded
    measured: Timing | None  # None if `report` was called without results
    predicted: Timing | None
    bus: float | None  # bytes per second from CPU memory to the GPU, if known

    @property
    def rate(self) -> float:
        """New tokens per second."""
        return self.tokens / self.seconds

    @property
    def bus_share(self) -> float | None:
        """What was moved from CPU memory to the GPU, as a share of what the bus could have moved in this time."""
        return None if self.bus is None else self.moved.get("CPU to GPU", 0) / self.seconds / self.bus

    def as_json(self) -> dict[str, Any]:
        found = {**asdict(self), "rate": self.rate, "bus_share": self.bus_share}
        for name in ("measured", "predicted"):
            if (timing := getattr(self, name)) is not None:
                rates = ("prefill_rate", "decode_rate", "total_rate", "seconds")
                found[name] |= {rate: getattr(timing, rate) for rate in rates}
        return found

    def lines(self) -> list[str]:
        """The report as lines of text."""
        found = [f"Placement: {self.policy}"]
        if (timing := self.measured) is not None:
            found.append(
                f"Prefill {timing.prefill_seconds:.2f} s ({readable(timing.prefill_rate)} tok/s), decode "
                f"{timing.decode_seconds:.2f} s ({readable(timing.decode_rate)} tok/s), total {timing.seconds:.2f} s "
                f"({readable(timing.total_rate)} tok/s)"
            )
        share = "" if self.bus_share is None else f", {self.bus_share:.0%} of what the bus can move"
        moved = ", ".join(f"{count / 1e9:,.2f} GB {way}" for way, count in self.moved.items()) or "nothing"
        peak = ", ".join(f"{tier} {count / 1e9:,.2f} GB" for tier, count in self.peak.items())
        found += [f"Moved: {moved}{share}", f"Peak reserved: {peak}"]
        if self.measured is not None and self.predicted is not None:
            found.append(side_by_side(self.predicted, self.measured))
        return found


class RunMeter:
    """Measures a run of a placed model, from its making to `report`."""

    def __init__(
        self,
        executor: StreamedExecutor,
        predict: Callable[[Workload], Timing] | None = None,
        bus: float | None = None,
    ):
        self._executor, self._predict, self._bus = executor, predict, bus
        self._moved, self._started = executor.tiers.use.moved.copy(), time.perf_counter()

    def report(self, results: Sequence[Result] | None = None, tokens: int = 0) -> RunReport:
        """The figures of a run with these results, or of one that kept none and generated so many tokens."""
        seconds, executor = time.perf_counter() - self._started, self._executor
        use, measured, predicted = executor.tiers.use, None, None
        if results:
            samples = [sample for result in results for sample in (result, *result.samples)]
            tokens = sum(len(sample.ids) for sample in samples)
            prompts = round(sum(sample.timing.prompt_tokens for sample in samples) / len(samples))
            answer = round(tokens / len(samples))
            prefill = max(sample.timing.first_token for sample in samples)
            total = max(sample.timing.total for sample in samples)
            measured = Timing(len(samples), prompts, answer, prefill, total - prefill)
            if self._predict is not None and answer:
                predicted = self._predict(Workload(prompts, answer, len(samples)))
        on_gpu = executor.model.device.type == "cuda"
        names = {tier: tier.value for tier in Tier} | ({} if on_gpu else {Tier.GPU: "memory"})
        peak = {names[tier]: use.peak[tier] for tier in Tier if use.peak[tier]}
        if on_gpu:
            peak[Tier.GPU.value] = torch.cuda.max_memory_reserved(executor.model.device)
        moved = {f"{names[a]} to {names[b]}": count for (a, b), count in (use.moved - self._moved).items()}
        policy = executor.policy.describe(names[Tier.GPU])
        bus = self._bus if on_gpu else None
        return RunReport(policy, seconds, tokens, moved, peak, measured, predicted, bus)

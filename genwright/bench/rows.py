"""Row: one line of the report, from timed samples, their work and the device's limits."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from genwright.bench.experiments import Experiment
from genwright.bench.roofline import Roofline
from genwright.bench.work import Work

GIGA, TERA = 1e9, 1e12
Tell = Callable[[str, int, int], None]  # what is being done, how much of it is done, and how much there is


@dataclass(frozen=True)
class Sample:
    """One call, timed by the caller."""

    seconds: float
    tokens: int  # new ones, of all sequences
    first: float  # seconds until every sequence had its first token
    decode: float  # tokens per second while all sequences were decoding


@dataclass(frozen=True)
class Row:
    """One point of an experiment on one engine; `error` says why there are no figures."""

    name: str
    model: str
    device: str
    engine: str = "genwright"
    arch: str = ""
    dtype: str = ""  # of the weights
    batch: int = 1  # sequences; of serving, all requests
    prompt: int = 0  # tokens; of serving, the shortest prompt's
    new: int = 0
    longest_prompt: int | None = None  # of serving only
    longest_new: int | None = None
    samples: int = 0
    load: float | None = None  # seconds
    first_token: float | None = None  # seconds, of the engine's first call in the process
    first_call: float | None = None  # seconds, with whatever is compiled
    prefill: float | None = None  # tokens per second
    prefill_tflops: float | None = None
    prefill_share: float | None = None  # of the rate of matrix products
    tokens_per_second: float | None = None  # of whole calls, as in PyTorch's benchmark
    weights_gbps: float | None = None  # GB of weights read per second of whole calls, as in PyTorch's benchmark
    decode: float | None = None  # tokens per second after the first, of all sequences
    decode_low: float | None = None
    decode_high: float | None = None
    gbps: float | None = None  # GB of weights and cache read per second of decoding
    share: float | None = None  # of the memory bandwidth
    decode_tflops: float | None = None
    prefill_intensity: float | None = None  # operations per byte of weights and cache
    memory: float | None = None  # GB at the peak
    rate: float | None = None  # of serving: requests that arrive per second; None if all arrive at once
    total: float | None = None  # prompt and new tokens per second of serving
    prompt_per_second: float | None = None
    ttft_p50: float | None = None  # seconds from a request's arrival to its first token, percentiles
    ttft_p99: float | None = None
    tbt_p50: float | None = None  # seconds between the tokens of a stream, percentiles
    tbt_p99: float | None = None
    limits_share: float | None = None  # seconds of prefill and decoding at the device's limits / seconds taken
    serving_tflops: float | None = None
    serving_intensity: float | None = None  # operations per byte of weights and cache
    read_gbps: float | None = None  # the memory bandwidth, measured in this run
    matmul_tflops: float | None = None  # the rate of matrix products, measured in this run
    error: str | None = None
    skipped: bool = False  # the device or the peer cannot run it, which is no failure

    @property
    def serving(self) -> bool:
        return self.longest_prompt is not None

    @property
    def per_sequence(self) -> float | None:
        """Tokens per second of one sequence."""
        return None if self.decode is None else self.decode / self.batch

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"per_sequence": self.per_sequence}


def blank(experiment: Experiment, error: str | None = None, skipped: bool = False) -> Row:
    """A row without figures."""
    return Row(experiment.name, experiment.model, experiment.device, error=error, skipped=skipped)


def fill(row: Row, samples: Sequence[Sample], work: Work, limits: Roofline) -> Row:
    """A row with figures, which are medians of the samples."""
    decodes = [sample.decode for sample in samples]
    whole = statistics.median(sample.tokens / sample.seconds for sample in samples)
    first = statistics.median(sample.first for sample in samples)
    decode = statistics.median(decodes)
    steps = decode / row.batch
    achieved = steps * (work.weights + work.cache)
    operations = work.prefill / first
    return replace(
        row,
        samples=len(samples),
        prefill=row.batch * row.prompt / first,
        prefill_tflops=operations / TERA,
        prefill_share=operations / limits.matmul,
        tokens_per_second=whole,
        weights_gbps=work.weights * whole / row.batch / GIGA,
        decode=decode,
        decode_low=min(decodes),
        decode_high=max(decodes),
        gbps=achieved / GIGA,
        share=achieved / limits.read,
        decode_tflops=steps * work.decode / TERA,
        prefill_intensity=work.prefill / (work.weights + work.cache),
        read_gbps=limits.read / GIGA,
        matmul_tflops=limits.matmul / TERA,
    )

"""The experiments as data: the model and its format, the prompts, and figures to compare with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.text.catalogue import CATALOGUE, DEFAULT
from genwright.text.settings import EngineConfig


@dataclass(frozen=True)
class Point:
    """What is generated: a batch of sequences, each a prompt of random tokens and new tokens."""

    batch: int = 1
    prompt: int = 6
    new: int = 200

    def __str__(self) -> str:
        return f"batch {self.batch}, prompt {self.prompt}"

    @property
    def mean_length(self) -> float:
        """The mean length of a sequence during decoding."""
        return self.prompt + self.new / 2

    @property
    def context(self) -> int:
        """Tokens that the cache is made for: a sequence's, and a page's more for what batches copy."""
        return self.prompt + self.new + 64 * (self.batch > 1)


@dataclass(frozen=True)
class Traffic:
    """Requests of random lengths, which arrive all at once or, as a Poisson process, one after the other."""

    requests: int
    prompt: tuple[int, int]  # shortest and longest
    new: tuple[int, int]
    rate: float | None = None  # requests per second
    share: float | None = None  # the rate as a share of the throughput at once, which is measured before

    def __str__(self) -> str:
        rate = "at once" if self.share is None else f"at {self.share:.0%} of the throughput"
        return f"{self.requests} requests {rate if self.rate is None else f'at {self.rate:g}/s'}"

    @property
    def at_once(self) -> bool:
        return self.rate is None and self.share is None

    @property
    def context(self) -> int:
        """Tokens that the cache is made for."""
        return self.prompt[1] + self.new[1]


@dataclass(frozen=True)
class Target:
    """The figures that PyTorch's benchmark expects (benchmarks/gpt_fast, on an A100 of 40 GB)."""

    name: str  # of the model there
    tokens_per_second: float
    gigabytes_per_second: float  # of weights
    first_call: float  # seconds, with compilation

    def figures(self) -> dict[str, float]:
        """The figures by PyTorch's names."""
        return {
            "token_per_sec": self.tokens_per_second,
            "memory_bandwidth(GB/s)": self.gigabytes_per_second,
            "compilation_time(s)": self.first_call,
        }


@dataclass(frozen=True)
class Experiment:
    """A model, which is loaded once, and the points that are measured with it."""

    name: str
    model: str
    config: EngineConfig  # of which device is cpu or cuda
    about: str
    points: tuple[Point | Traffic, ...] = (Point(),)
    samples: int = 5
    target: Target | None = None

    @property
    def device(self) -> str:
        return self.config.device

    @property
    def context(self) -> int:
        """Tokens that the cache is made for."""
        return max(point.context for point in self.points)


def _serving(requests: int, prompt: tuple[int, int], new: tuple[int, int]) -> tuple[Traffic, ...]:
    """All requests at once, and then arrivals at 60 % of that throughput."""
    return Traffic(requests, prompt, new), Traffic(requests, prompt, new, share=0.6)


_7B, _8B, _70B = "random:llama-2-7b", "random:llama-3.1-8b", "random:llama-3.1-70b"
_1B = "random:tinyllama-1.1b"
_CPU, _BF16 = EngineConfig(device="cpu"), EngineConfig(device="cuda", dtype="bfloat16")
_INT8, _INT4 = replace(_BF16, quant="int8"), replace(_BF16, quant="int4:g32")
_INT4_ASYM, _FP8 = replace(_BF16, quant="int4:g32:asym"), replace(_BF16, quant="fp8")
_FP8_INPUTS = replace(_FP8, fp8_inputs=True)
_MIXTRAL = "random:mixtral-8x7b,layers=16"
_SMALL = (Point(1, 256, 48),)
_LATENT = tuple(Point(batch) for batch in (1, 8, 64))
_BATCHES = tuple(Point(batch, 512, 64) for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256))
_FORMATS = (*(Point(batch, 64, 64) for batch in (1, 8, 16, 64)), Point(1, 2048, 16))

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("smollm2", DEFAULT, _CPU, "the default model", (*_SMALL, Point(8, 256, 48), Point(32, 256, 48)), 3),
        Experiment("smollm2_serving", DEFAULT, _CPU, "32 requests", _serving(32, (16, 256), (16, 64)), 3),
        Experiment("tinyllama_1b", _1B, _CPU, "the 1.1 B Llama shape", _SMALL, 3),
        Experiment("tinyllama_1b_int8", _1B, replace(_CPU, quant="int8"), "the same in int8", _SMALL, 3),
        Experiment("tinyllama_1b_int4", _1B, replace(_CPU, quant="int4"), "the same in int4", _SMALL, 3),
        Experiment(
            *("llama2_7b_bf16", _7B, _BF16, "PyTorch's first"), target=Target("Llama-2-7b-chat-hf", 94, 1253, 162)
        ),
        Experiment(
            *("llama2_7b_int8", _7B, _INT8, "PyTorch's second"), target=Target("Llama-2-7b-chat-hf", 144, 957, 172)
        ),
        Experiment(
            *("mixtral_8x7b_int8", _MIXTRAL, _INT8, "PyTorch's third"),
            target=Target("Mixtral-8x7B-v0.1", 175, 1130, 162),
        ),
        Experiment(
            *("mixtral_8x7b_int8_batch", _MIXTRAL, _INT8, "8 to 64 sequences"),
            points=tuple(Point(batch, 64, 64) for batch in (8, 16, 32, 64)),
            samples=3,
        ),
        Experiment("llama2_7b_int4", _7B, _INT4, "in groups of 32"),
        Experiment("llama2_7b_int4_asym", _7B, _INT4_ASYM, "with minima"),
        Experiment("llama2_7b_fp8", _7B, _FP8, "in blocks of 128 x 128"),
        Experiment("llama2_7b_deterministic", _7B, replace(_BF16, deterministic=True), "the same bits in any batch"),
        Experiment("llama3_8b_bf16", _8B, _BF16, "batches and a prompt of 2,048 tokens", _FORMATS, 3),
        Experiment("llama3_8b_int8", _8B, _INT8, "the same in int8", _FORMATS, 3),
        Experiment("llama3_8b_int4", _8B, _INT4, "the same in int4", _FORMATS, 3),
        Experiment("llama3_8b_int4_asym", _8B, _INT4_ASYM, "the same in int4 with minima", _FORMATS, 3),
        Experiment("llama3_8b_fp8", _8B, _FP8, "the same in fp8", _FORMATS, 3),
        Experiment("llama3_8b_fp8_inputs", _8B, _FP8_INPUTS, "the same in fp8, with rounded inputs", _FORMATS, 3),
        Experiment("llama3_8b_8k", _8B, _BF16, "after 8,000 tokens", (Point(1, 8000, 192),)),
        Experiment("llama3_8b_batch", _8B, _BF16, "1 to 256 sequences", _BATCHES, 3),
        Experiment("llama3_8b_serving", _8B, _BF16, "512 requests", _serving(512, (64, 1024), (32, 256)), 3),
        Experiment("llama3_70b_int4", _70B, _INT4, "70 B on one GPU"),
        Experiment("deepseek_v2_lite_bf16", "random:deepseek-v2-lite", _BF16, "latent attention, 64 experts", _LATENT),
        Experiment(
            *(
                "deepseek_v3_fp8",
                "random:deepseek-v3,layers=12",
                _FP8_INPUTS,
                "as much of V3 as fits, rounded as it was trained",
            ),
            points=(*_LATENT, Point(1, 8000, 192)),
            samples=3,
        ),
    )
}
DEFAULTS = {
    "cpu": ("smollm2", "tinyllama_1b", "tinyllama_1b_int8", "tinyllama_1b_int4"),
    "cuda": ("llama2_7b_bf16", "llama2_7b_int8", "llama2_7b_int4"),
}


def choose(names: Iterable[str], device: str) -> list[Experiment]:
    """Find experiments by name; a path, a name of `genwright pull` or random:NAME becomes an experiment."""
    return [_find(name, device) for name in names or DEFAULTS[device]]


def _find(name: str, device: str) -> Experiment:
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    if name in CATALOGUE or ":" in name or "/" in name or Path(name).exists():
        return Experiment(name, name, EngineConfig(device=device), "as given")
    close = get_close_matches(name, EXPERIMENTS)
    hint = f"did you mean {close[0]!r}?" if close else "`genwright bench --list` lists them."
    raise UserError(f"There is no experiment {name!r}; {hint}")


def adapt(
    experiment: Experiment,
    settings: Mapping[str, Any],
    batch: list[int] | None = None,
    prompt: list[int] | None = None,
    new: int | None = None,
    samples: int | None = None,
    rate: list[float] | None = None,
) -> Experiment:
    """An experiment with other settings, batch sizes, lengths or rates; every batch size with every prompt length."""
    points = [
        _with_sizes(point, size, length, new)
        for length in prompt or (None,)
        for point in experiment.points
        for size in batch or (None,)
    ]
    if rate:
        points = [each for point in points for each in _with_rates(point, rate)]
    return replace(
        experiment,
        config=replace(experiment.config, **settings),
        points=tuple(dict.fromkeys(points)),
        samples=samples or experiment.samples,
    )


def _with_sizes(point: Point | Traffic, batch: int | None, prompt: int | None, new: int | None) -> Point | Traffic:
    if isinstance(point, Point):
        return Point(batch or point.batch, prompt or point.prompt, new or point.new)
    return replace(
        point,
        requests=batch or point.requests,
        prompt=(prompt, prompt) if prompt else point.prompt,
        new=(new, new) if new else point.new,
    )


def _with_rates(point: Point | Traffic, rates: Iterable[float]) -> list[Point | Traffic]:
    if isinstance(point, Point) or point.at_once:
        return [point]
    return [replace(point, rate=rate, share=None) for rate in rates]

"""Policy: where weights, cache and activations live, and in which batches a step runs."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from genwright.arguments import check_settings, setting, short
from genwright.errors import UserError

SHARES = ("weights_gpu", "weights_cpu", "cache_gpu", "cache_cpu", "activations_gpu", "activations_cpu")


def _percent(default: int, help: str) -> Any:
    return setting(default, help, between=(0, 100))


@dataclass(frozen=True)
class Policy:
    """Where weights, cache and activations live, and in which batches a step runs.

    The six percentages have FlexLLMGen's order; what is neither in GPU memory nor in CPU memory is on disk.
    """

    weights_gpu: int = _percent(100, "Percent of each block's weights in GPU memory.")
    weights_cpu: int = _percent(0, "Percent of each block's weights in CPU memory.")
    cache_gpu: int = _percent(100, "Percent of the sequences whose cache is in GPU memory.")
    cache_cpu: int = _percent(0, "Percent of the sequences whose cache is in CPU memory.")
    activations_gpu: int = _percent(100, "Percent of the tokens whose activations are in GPU memory between blocks.")
    activations_cpu: int = _percent(0, "Percent of the tokens whose activations are in CPU memory between blocks.")
    micro_batch: int = setting(0, "Sequences that a block computes at a time; 0: all of a step.", between=(0, 1 << 16))
    micro_batches: int = setting(1, "Micro-batches of a step; together they are the batch.", between=(1, 1 << 16))
    overlap: bool = setting(True, "Move data on separate streams while a block computes.")
    separate_layers: bool = setting(True, "Move attention and MLP separately.")
    pin: bool = setting(True, "Pin the CPU memory of weights.")
    cpu_attention: bool = setting(False, "Compute attention on the CPU if the cache is in CPU memory.")
    sparsity: float = setting(1.0, "Share of the cached tokens that attention reads; 1.0: all.", between=(0.0, 1.0))

    def __post_init__(self) -> None:
        check_settings(self)
        for what in ("weights", "cache", "activations"):
            gpu, cpu, disk = self.shares(what)
            if disk < 0:
                raise UserError(f"{what}_gpu and {what}_cpu must be at most 100 together, not {gpu} + {cpu}.")
        if self.sparsity == 0:
            raise UserError("sparsity must be above 0 and at most 1.")
        if self.micro_batches > 1 and not self.micro_batch:
            raise UserError(f"micro_batch must be at least 1 if a step has {self.micro_batches} micro-batches.")

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """Six percentages, and further fields by name: `0,100,100,0,100,0` or `0,100,100,0,100,0,micro_batch=32`."""
        words = [word.strip() for word in text.split(",")]
        numbers = [word for word in words if "=" not in word]
        if len(numbers) != len(SHARES) or words[: len(SHARES)] != numbers or not all(map(str.isdecimal, numbers)):
            raise UserError(
                f"A policy is six percentages (weights on GPU and CPU, cache on GPU and CPU, activations on GPU and "
                f"CPU), such as 0,100,100,0,100,0, and then fields such as micro_batch=32, not {short(text)}."
            )
        named = [word.partition("=")[::2] for word in words[len(SHARES) :]]
        given: dict[str, Any] = dict(zip(SHARES, map(int, numbers), strict=True))
        return cls(**given | {name: _value(name, value) for name, value in named})

    def __str__(self) -> str:
        """The text that `parse` reads, with the fields that are not the default."""
        shares = (str(getattr(self, name)) for name in SHARES)
        others = (
            f"{name}={str(value).lower()}"
            for name, default in _OTHERS.items()
            if (value := getattr(self, name)) != default
        )
        return ",".join((*shares, *others))

    def shares(self, what: str) -> tuple[int, int, int]:
        """Percent of the `weights`, the `cache` or the `activations` on the GPU, in CPU memory and on disk."""
        gpu, cpu = getattr(self, f"{what}_gpu"), getattr(self, f"{what}_cpu")
        return gpu, cpu, 100 - gpu - cpu

    @property
    def resident(self) -> bool:
        """Everything is on the compute device."""
        return self.weights_gpu == self.cache_gpu == self.activations_gpu == 100

    @property
    def batch(self) -> int:
        """Sequences of the largest step; 0 if any number."""
        return self.micro_batch * self.micro_batches

    def describe(self, device: str = "GPU") -> str:
        """One line for people; `device` names the memory that is computed in."""
        places, names = [], (device, "CPU", "disk")
        for what in ("weights", "cache", "activations"):
            parts = [f"{share}% {tier}" for tier, share in zip(names, self.shares(what), strict=True) if share]
            places.append(f"{what} {' + '.join(parts)}")
        if self.micro_batch:
            places.append(f"{self.micro_batches} x {self.micro_batch} sequences")
        off = [words for name, words in _WITHOUT.items() if not getattr(self, name)]
        on = ["attention on the CPU"] if self.cpu_attention else []
        sparse = [f"attention reads {self.sparsity:.0%} of the cache"] if self.sparsity < 1 else []
        return ", ".join((*places, *off, *on, *sparse))


_WITHOUT = {"overlap": "no overlap", "separate_layers": "attention and MLP moved together", "pin": "pageable memory"}
_OTHERS: Mapping[str, Any] = {each.name: each.default for each in fields(Policy) if each.name not in SHARES}


def _value(name: str, text: str) -> Any:
    """The value of a field that is written `name=text`."""
    if name not in _OTHERS:
        raise UserError(f"A policy has no field {short(name)}; its fields are {', '.join(_OTHERS)}.")
    kind = type(_OTHERS[name])
    try:
        return {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (KeyError, ValueError):
        what = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise UserError(f"{name} must be {what}, not {short(text)}.") from None

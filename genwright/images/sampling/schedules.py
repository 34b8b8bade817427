"""Noise schedules: decreasing lists of sigma, computed on the host in float64."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from genwright.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Ramp = TypeVar("Ramp", float, "Tensor")


def karras(n: int, sigma_min: float, sigma_max: float, rho: float = 7.0) -> list[float]:
    """EDM's equation 5: equal steps in sigma^(1/rho)."""
    return [karras_level(ramp, sigma_min, sigma_max, rho) for ramp in _ramp(n)]


def exponential(n: int, sigma_min: float, sigma_max: float) -> list[float]:
    """Equal steps in ln sigma."""
    return [sigma_max ** (1 - ramp) * sigma_min**ramp for ramp in _ramp(n)]


def vp(n: int, beta_d: float = 19.9, beta_min: float = 0.1, eps: float = 1e-3) -> list[float]:
    """Noise levels of the variance-preserving SDE (Song et al. 2021), at equal time steps from 1 to eps."""
    times = [1 + ramp * (eps - 1) for ramp in _ramp(n)]
    return [math.sqrt(math.expm1(beta_d * t**2 / 2 + beta_min * t)) for t in times]


def multistep(ts: Sequence[int], steps: int, sigma_min: float, sigma_max: float, rho: float = 7.0) -> list[float]:
    """The levels at indices `ts` of a Karras schedule of `steps` levels."""
    rises = all(a < b for a, b in pairwise(ts))
    if len(ts) < 2 or not rises or ts[0] != 0 or ts[-1] != steps - 1:
        raise UserError(
            f"ts must rise from 0 to steps - 1, which is {steps - 1}, but is {','.join(map(str, ts)) or 'empty'}."
        )
    return [karras_level(t / (steps - 1), sigma_min, sigma_max, rho) for t in ts]


def karras_level(ramp: Ramp, sigma_min: float, sigma_max: float, rho: float) -> Ramp:
    """The Karras schedule's noise level at `ramp`, from 0 (sigma_max) to 1 (sigma_min)."""
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return (high + ramp * (low - high)) ** rho


def _ramp(n: int) -> list[float]:
    return [i / max(1, n - 1) for i in range(n)]

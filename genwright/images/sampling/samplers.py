"""Samplers: from noise x at sigmas[0] down the schedule to an image; all have the same signature.

`denoise(x, sigma)` estimates the clean image, `noise()` draws standard normals shaped like x, and `callback` is called
at every step. Sigmas are host floats, so that no step waits for the device. This file imports no torch, because the
command line reads the samplers' names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from genwright.images.sampling.per_sample_rng import Noise

Denoise = Callable[["Tensor", float], "Tensor"]
Sigmas = Sequence[float]


@dataclass(frozen=True)
class Step:
    """A callback's argument: the step's number and noise level, the state before it, and the estimated image."""

    index: int
    sigma: float
    x: Tensor
    denoised: Tensor


Callback = Callable[[Step], None]


@dataclass(frozen=True)
class Churn:
    """EDM's stochasticity: noise added while s_tmin <= sigma <= s_tmax."""

    s_churn: float = 0.0
    s_tmin: float = 0.0
    s_tmax: float = math.inf
    s_noise: float = 1.0

    def gamma(self, sigma: float, steps: int) -> float:
        return min(self.s_churn / steps, math.sqrt(2) - 1) if self.s_tmin <= sigma <= self.s_tmax else 0.0


class Sampler(Protocol):
    def __call__(
        self, denoise: Denoise, x: Tensor, sigmas: Sigmas, noise: Noise, churn: Churn, callback: Callback
    ) -> Tensor: ...


def heun(denoise: Denoise, x: Tensor, sigmas: Sigmas, noise: Noise, churn: Churn, callback: Callback) -> Tensor:
    """Algorithm 2 of Karras et al. (2022)."""
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        x_hat, sigma_hat = _add_churn(x, sigma, len(sigmas) - 1, noise, churn)
        denoised = denoise(x_hat, sigma_hat)
        callback(Step(i, sigma, x_hat, denoised))
        d = (x_hat - denoised) / sigma_hat
        x = x_hat + d * (sigma_next - sigma_hat)
        if sigma_next > 0:
            d_next = (x - denoise(x, sigma_next)) / sigma_next
            x = x_hat + (d + d_next) * ((sigma_next - sigma_hat) / 2)
    return x


def euler(denoise: Denoise, x: Tensor, sigmas: Sigmas, noise: Noise, churn: Churn, callback: Callback) -> Tensor:
    """Euler steps along dx/dsigma = (x - D(x, sigma)) / sigma."""
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = denoise(x, sigma)
        callback(Step(i, sigma, x, denoised))
        x = x + (x - denoised) * ((sigma_next - sigma) / sigma)
    return x


def dpm(denoise: Denoise, x: Tensor, sigmas: Sigmas, noise: Noise, churn: Churn, callback: Callback) -> Tensor:
    """Midpoint steps, the midpoint taken on a rho = 3 Karras schedule; after DPM-Solver-2 (Lu et al. 2022)."""
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        x_hat, sigma_hat = _add_churn(x, sigma, len(sigmas) - 1, noise, churn)
        denoised = denoise(x_hat, sigma_hat)
        callback(Step(i, sigma, x_hat, denoised))
        sigma_mid = ((sigma_hat ** (1 / 3) + sigma_next ** (1 / 3)) / 2) ** 3
        x_mid = x_hat + (x_hat - denoised) * ((sigma_mid - sigma_hat) / sigma_hat)
        x = x_hat + (x_mid - denoise(x_mid, sigma_mid)) * ((sigma_next - sigma_hat) / sigma_mid)
    return x


def ancestral(denoise: Denoise, x: Tensor, sigmas: Sigmas, noise: Noise, churn: Churn, callback: Callback) -> Tensor:
    """An Euler step to below the next noise level, then noise up to it."""
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = denoise(x, sigma)
        callback(Step(i, sigma, x, denoised))
        sigma_up = sigma_next * math.sqrt((sigma**2 - sigma_next**2) / sigma**2)
        sigma_down = math.sqrt(sigma_next**2 - sigma_up**2)
        x = x + (x - denoised) * ((sigma_down - sigma) / sigma) + noise() * sigma_up
    return x


def dpmpp_2m(denoise: Denoise, x: Tensor, sigmas: Sigmas, noise: Noise, churn: Churn, callback: Callback) -> Tensor:
    """DPM-Solver++(2M) (Lu et al. 2022, algorithm 2): one evaluation a step, second order from the last two."""
    last: tuple[Tensor, float] | None = None
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = denoise(x, sigma)
        callback(Step(i, sigma, x, denoised))
        target = denoised
        # h is the step in lambda = -ln sigma; the last step, to sigma = 0, is infinite and ends at the target.
        h = math.log(sigma / sigma_next) if sigma_next > 0 else math.inf
        if last is not None and sigma_next > 0:
            last_denoised, last_h = last
            target = denoised + (denoised - last_denoised) * (h / (2 * last_h))
        x = x * (sigma_next / sigma) - target * math.expm1(-h)
        last = denoised, h
    return x


def onestep(denoise: Denoise, x: Tensor, sigmas: Sigmas, noise: Noise, churn: Churn, callback: Callback) -> Tensor:
    """One evaluation of a consistency model."""
    denoised = denoise(x, sigmas[0])
    callback(Step(0, sigmas[0], x, denoised))
    return denoised


def multistep(denoise: Denoise, x: Tensor, sigmas: Sigmas, noise: Noise, churn: Churn, callback: Callback) -> Tensor:
    """Algorithm 1 of Song et al. (2023): denoise, add noise up to the next level, repeat; sigmas end at sigma_min."""
    sigma_min = sigmas[-1]
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = denoise(x, sigma)
        callback(Step(i, sigma, x, denoised))
        x = denoised + noise() * math.sqrt(max(0.0, sigma_next**2 - sigma_min**2))
    return x


# A progressively distilled model takes Euler steps; only its schedule differs, which ends at sigma_min.
progdist = euler

SAMPLERS: dict[str, Sampler] = {
    "heun": heun,
    "euler": euler,
    "dpm": dpm,
    "ancestral": ancestral,
    "dpmpp-2m": dpmpp_2m,
    "onestep": onestep,
    "multistep": multistep,
    "progdist": progdist,
}


def _add_churn(x: Tensor, sigma: float, steps: int, noise: Noise, churn: Churn) -> tuple[Tensor, float]:
    gamma = churn.gamma(sigma, steps)
    if gamma == 0:
        noise.skip()
        return x, sigma
    sigma_hat = sigma * (1 + gamma)
    return x + noise() * (churn.s_noise * math.sqrt(sigma_hat**2 - sigma**2)), sigma_hat

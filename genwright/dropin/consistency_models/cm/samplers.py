"""The original's samplers: its names and signatures over Genwright's samplers, on its generators and schedules."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

from cm.nn import append_dims
from cm.random_util import DummyGenerator, Generator
from genwright.images.sampling import samplers, schedules
from genwright.images.sampling.per_sample_rng import Noise
from genwright.images.sampling.samplers import Churn, Sampler, Step

Denoiser = Callable[[Tensor, Tensor], Tensor]  # x [N, 3, H, W], sigma [N]
Callback = Callable[[dict[str, Any]], object]


def get_sigmas_karras(n: int, sigma_min: float, sigma_max: float, rho: float = 7.0, device: Any = "cpu") -> Tensor:
    """EDM's schedule of n levels, and 0."""
    return torch.tensor([*schedules.karras(n, sigma_min, sigma_max, rho), 0.0], device=device)


def to_d(x: Tensor, sigma: Tensor, denoised: Tensor) -> Tensor:
    """The derivative dx/dsigma."""
    return (x - denoised) / append_dims(sigma, x.ndim)


def get_ancestral_step(sigma_from: Any, sigma_to: Any) -> tuple[Any, Any]:
    """The level to step down to, and the noise to add up to sigma_to."""
    sigma_up = (sigma_to**2 * (sigma_from**2 - sigma_to**2) / sigma_from**2) ** 0.5
    return (sigma_to**2 - sigma_up**2) ** 0.5, sigma_up


@torch.no_grad()
def _sample(
    sampler: Sampler,
    denoiser: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    generator: Generator | None,
    progress: bool,
    callback: Callback | None,
    churn: Churn = Churn(),  # noqa: B008
) -> Tensor:
    draws: Generator = generator or DummyGenerator()
    levels = sigmas.tolist()
    with Progress(disable=not progress) as bar:
        task = bar.add_task("sampling", total=len(levels) - 1)

        def tell(step: Step) -> None:
            bar.advance(task)
            if callback is not None:
                sigma_hat = step.sigma * (1 + churn.gamma(step.sigma, len(levels) - 1))
                found = {"x": step.x, "i": step.index, "sigma": step.sigma, "sigma_hat": sigma_hat}
                callback(found | {"denoised": step.denoised})

        def denoise(x: Tensor, sigma: float) -> Tensor:
            return denoiser(x, x.new_full((len(x),), sigma))

        noise = Noise(lambda draw: draws.randn_like(x), stateful=True)
        return sampler(denoise, x, levels, noise, churn, tell)


def _plain(sampler: Sampler, about: str) -> Any:
    def sample(
        denoiser: Denoiser,
        x: Tensor,
        sigmas: Tensor,
        generator: Generator | None = None,
        progress: bool = False,
        callback: Callback | None = None,
    ) -> Tensor:
        return _sample(sampler, denoiser, x, sigmas, generator, progress, callback)

    sample.__doc__ = about
    return sample


def _churning(sampler: Sampler, about: str) -> Any:
    def sample(
        denoiser: Denoiser,
        x: Tensor,
        sigmas: Tensor,
        generator: Generator | None = None,
        progress: bool = False,
        callback: Callback | None = None,
        s_churn: float = 0.0,
        s_tmin: float = 0.0,
        s_tmax: float = math.inf,
        s_noise: float = 1.0,
    ) -> Tensor:
        churn = Churn(s_churn, s_tmin, s_tmax, s_noise)
        return _sample(sampler, denoiser, x, sigmas, generator, progress, callback, churn)

    sample.__doc__ = about
    return sample


sample_heun = _churning(samplers.heun, "Algorithm 2 of Karras et al. (2022).")
sample_dpm = _churning(samplers.dpm, "Midpoint steps, after DPM-Solver-2.")
sample_euler = _plain(samplers.euler, "Euler steps.")
sample_euler_ancestral = _plain(samplers.ancestral, "Euler steps to below the next level, then noise up to it.")
sample_onestep = _plain(samplers.onestep, "One evaluation of a consistency model.")


def sample_progdist(
    denoiser: Denoiser,
    x: Tensor,
    sigmas: Tensor,
    generator: Generator | None = None,
    progress: bool = False,
    callback: Callback | None = None,
) -> Tensor:
    """Euler steps of a progressively distilled model, without the last one of the schedule, to 0."""
    return _sample(samplers.progdist, denoiser, x, sigmas[:-1], generator, progress, callback)


@torch.no_grad()
def sample_midpoint_ancestral(
    model: Denoiser,
    x: Tensor,
    ts: Sequence[float] | Tensor,
    generator: Generator | None = None,
    progress: bool = False,
    callback: Callback | None = None,
) -> Tensor:
    """Midpoint steps of 1 / len(ts) at the times `ts`, with a model that returns the derivative dx/dt."""
    step = 1 / len(ts)
    with Progress(disable=not progress) as bar:
        for t in bar.track(ts, description="sampling"):
            dn, time = model(x, t * x.new_ones(len(x))), t + step / 2
            dn_2 = model(x + step / 2 * dn, time * x.new_ones(len(x)))
            x = x + step * dn_2
            if callback is not None:
                callback({"x": x, "tn": t, "dn": dn, "dn_2": dn_2})
    return x


@torch.no_grad()
def stochastic_iterative_sampler(
    distiller: Denoiser,
    x: Tensor,
    sigmas: Any,
    generator: Generator | None = None,
    ts: Sequence[int] | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    t_min: float = 0.002,
    t_max: float = 80.0,
    rho: float = 7.0,
    steps: int = 40,
) -> Tensor:
    """Algorithm 1 of Song et al. (2023): denoise at each of `ts`, and add noise up to the next.

    `ts` are indices of a schedule of `steps` levels, and may also be given in place of `sigmas`, which are not used.
    """
    draws: Generator = generator or DummyGenerator()
    levels = [schedules.karras_level(t / (steps - 1), t_min, t_max, rho) for t in (sigmas if ts is None else ts)]
    for i, (level, following) in enumerate(pairwise(levels)):
        x0 = distiller(x, x.new_full((len(x),), level))
        if callback is not None:
            callback({"x": x, "i": i, "sigma": level, "denoised": x0})
        x = x0 + draws.randn_like(x) * math.sqrt(min(max(following, t_min), t_max) ** 2 - t_min**2)
    return x

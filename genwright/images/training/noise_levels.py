"""How the gap between neighbouring noise levels shrinks while a consistency model trains."""

import math

import torch
from torch import Tensor

from genwright.errors import UserError


def adaptive(
    step: int, steps: int, start_scales: int = 2, end_scales: int = 150, start_ema: float = 0.95
) -> tuple[float, int]:
    """The original's adaptive schedules (Song et al. 2023, appendix C): the target's EMA mu(k) and N(k) levels."""
    span = step / steps * ((end_scales + 1) ** 2 - start_scales**2) + start_scales**2
    scales = max(1, math.ceil(math.sqrt(span) - 1))
    return math.exp(math.log(start_ema) * start_scales / scales), scales + 1


def level(index: Tensor, scales: int, sigma_min: float, sigma_max: float, rho: float) -> Tensor:
    """The Karras schedule's noise level at `index`, a number from 0 (sigma_max) to `scales` (sigma_min)."""
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return (high + index / scales * (low - high)) ** rho


def log_normal(count: int, p_mean: float, p_std: float, device: torch.device) -> Tensor:
    """Noise levels as EDM draws them: ln sigma ~ N(p_mean, p_std^2)."""
    return (p_mean + p_std * torch.randn(count, device=device)).exp()


def ect_lower(t: Tensor, stage: int, sigma_min: float, q: float = 2.0, k: float = 8.0, b: float = 1.0) -> Tensor:
    """Easy consistency tuning's r < t (Geng et al. 2024): r / t = 1 - (1 + k sigmoid(-b t)) / q^(stage + 1)."""
    ratio = 1 - (1 + k * torch.sigmoid(-b * t)) / q ** (stage + 1)
    return (t * ratio).clamp(min=sigma_min)


def ect_stage(step: int, steps: int, first: int, stages: int) -> int:
    """The stage, first to stages - 1, of equally long ones; r / t's distance from 1 halves from each to the next."""
    return first + min(stages - first - 1, step * (stages - first) // steps)


def halving(step: int, steps: int, start_scales: int) -> tuple[int, int]:
    """How many sampling steps are distilled to now (start_scales, half of it, ..., 1), and how long each lasts."""
    if start_scales < 1 or start_scales & (start_scales - 1):
        raise UserError(f"Progressive distillation halves its steps to 1, so {start_scales} should be a power of 2.")
    length = max(1, steps // start_scales.bit_length())
    return max(1, start_scales >> step // length), length

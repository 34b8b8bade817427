"""The noise levels that training compares, and how they change while a consistency model trains."""

import math

import torch
from torch import Tensor


def adaptive_schedule(
    step: int, steps: int, start_scales: int = 2, end_scales: int = 150, start_ema: float = 0.95
) -> tuple[float, int]:
    """The original's adaptive schedules (Song et al. 2023, appendix C): the target's decay mu(k) and N(k) levels."""
    span = step / steps * ((end_scales + 1) ** 2 - start_scales**2) + start_scales**2
    scales = max(1, math.ceil(math.sqrt(span) - 1))
    return math.exp(math.log(start_ema) * start_scales / scales), scales + 1


def log_normal(count: int, p_mean: float, p_std: float, device: torch.device) -> Tensor:
    """EDM's noise levels: ln sigma ~ N(p_mean, p_std^2)."""
    return (p_mean + p_std * torch.randn(count, device=device)).exp()


def ect_lower_level(t: Tensor, stage: int, sigma_min: float, q: float = 2.0, k: float = 8.0, b: float = 1.0) -> Tensor:
    """Easy consistency tuning's r < t (Geng et al. 2024): r / t = 1 - (1 + k sigmoid(-b t)) / q^(stage + 1)."""
    ratio = 1 - (1 + k * torch.sigmoid(-b * t)) / q ** (stage + 1)
    return (t * ratio).clamp(min=sigma_min)


def ect_stage(step: int, steps: int, first: int, stages: int) -> int:
    """The current stage, first to stages - 1, all equally long; 1 - r / t halves from one stage to the next."""
    return first + min(stages - first - 1, step * (stages - first) // steps)

"""RMSNorm (Zhang & Sennrich, 2019)."""

import torch
from torch.nn.functional import rms_norm as torch_rms_norm


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    return torch_rms_norm(x, weight.shape, weight, eps)

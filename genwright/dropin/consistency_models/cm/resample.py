"""Schedule samplers: which time steps or noise levels a training step takes, and their weights in the loss."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.stats import norm
from torch import Tensor

from genwright.errors import UserError
from genwright.images.training.noise_levels import log_normal


def create_named_schedule_sampler(name: str, diffusion: Any) -> "ScheduleSampler | LogNormalSampler":
    """A sampler by name."""
    if name == "uniform":
        return UniformSampler(diffusion)
    if name == "loss-second-moment":
        return LossSecondMomentResampler(diffusion)
    if name == "lognormal":
        return LogNormalSampler()
    raise UserError(f"There is no schedule sampler {name!r}; there are uniform, loss-second-moment and lognormal.")


class ScheduleSampler(ABC):
    """Draws time steps in proportion to weights, which the loss divides out again."""

    @abstractmethod
    def weights(self) -> np.ndarray:
        """One weight, above 0, for each time step."""

    def sample(self, batch_size: int, device: Any) -> tuple[Tensor, Tensor]:
        """Time steps [N], and the weights [N] of their losses; drawn with numpy's global generator."""
        weights = self.weights()
        chances = weights / weights.sum()
        drawn = np.random.choice(len(chances), size=(batch_size,), p=chances)
        inverse = 1 / (len(chances) * chances[drawn])
        return torch.from_numpy(drawn).long().to(device), torch.from_numpy(inverse).float().to(device)


class UniformSampler(ScheduleSampler):
    """All time steps alike."""

    def __init__(self, diffusion: Any):
        self._weights = np.ones([diffusion.num_timesteps])

    def weights(self) -> np.ndarray:
        return self._weights


class LossAwareSampler(ScheduleSampler):
    """A sampler that learns from the losses of all ranks."""

    def update_with_local_losses(self, local_ts: Tensor, local_losses: Tensor) -> None:
        """Gather the losses of this rank and of the others; all ranks must call it."""
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (local_ts.tolist(), local_losses.tolist()))
        self.update_with_all_losses(
            [t for ts, _ in gathered for t in ts], [loss for _, losses in gathered for loss in losses]
        )

    @abstractmethod
    def update_with_all_losses(self, ts: Sequence[int], losses: Sequence[float]) -> None:
        """Learn from losses, the same on all ranks."""


class LossSecondMomentResampler(LossAwareSampler):
    """Time steps in proportion to the root of their mean squared loss, once each has `history_per_term` of them."""

    def __init__(self, diffusion: Any, history_per_term: int = 10, uniform_prob: float = 0.001):
        self.uniform_prob = uniform_prob
        self._history = np.zeros([diffusion.num_timesteps, history_per_term])  # the latest loss is the last
        self._counts = np.zeros(diffusion.num_timesteps, np.int64)

    def weights(self) -> np.ndarray:
        if (self._counts < self._history.shape[1]).any():
            return np.ones(len(self._counts))
        roots = np.sqrt((self._history**2).mean(axis=-1))
        return roots / roots.sum() * (1 - self.uniform_prob) + self.uniform_prob / len(roots)

    def update_with_all_losses(self, ts: Sequence[int], losses: Sequence[float]) -> None:
        for t, loss in zip(ts, losses, strict=True):
            self._history[t] = np.append(self._history[t, 1:], loss)
            self._counts[t] += 1


class LogNormalSampler:
    """EDM's noise levels; with `even`, one from each of as many parts of the distribution as all ranks draw."""

    def __init__(self, p_mean: float = -1.2, p_std: float = 1.2, even: bool = False):
        self.p_mean, self.p_std, self.even = p_mean, p_std, even

    def sample(self, bs: int, device: Any) -> tuple[Tensor, Tensor]:
        """Noise levels [N], and weights of 1."""
        if not self.even:
            sigmas = log_normal(bs, self.p_mean, self.p_std, device)
        else:
            first, count = dist.get_rank() * bs, dist.get_world_size() * bs
            parts = (torch.arange(first, first + bs) + torch.rand(bs)) / count
            logs = norm.ppf(parts.numpy(), loc=self.p_mean, scale=self.p_std)
            sigmas = torch.tensor(logs, dtype=torch.float32, device=device).exp()
        return sigmas, torch.ones_like(sigmas)

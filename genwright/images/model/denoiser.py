"""Karras preconditioning (EDM, arXiv 2206.00364) and the consistency models' boundary condition (arXiv 2303.01469)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genwright.arguments import one_of

Network = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Denoiser:
    """D(x, sigma) = c_skip x + c_out F(c_in x, 250 ln sigma); with `consistency`, D(x, sigma_min) = x."""

    network: Network
    sigma_data: float = 0.5
    sigma_min: float = 0.002
    consistency: bool = False

    def scalings(self, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """c_skip, c_out and c_in: EDM's table 1, or the consistency paper's appendix C."""
        total = sigma**2 + self.sigma_data**2
        c_in = total**-0.5
        if self.consistency:
            above = sigma - self.sigma_min
            return self.sigma_data**2 / (above**2 + self.sigma_data**2), above * self.sigma_data * c_in, c_in
        return self.sigma_data**2 / total, sigma * self.sigma_data * c_in, c_in

    def __call__(self, x: Tensor, sigma: Tensor, labels: Tensor | None = None) -> Tensor:
        # x [N, C, H, W], sigma [N], labels [N]
        c_skip, c_out, c_in = (c.view(-1, 1, 1, 1) for c in self.scalings(sigma))
        # 1e-44 (a float32 denormal) is the original's guard against ln 0.
        return c_skip * x + c_out * self.network(c_in * x, 250 * torch.log(sigma + 1e-44), labels)


WEIGHTINGS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "snr": lambda snr, sigma_data: snr,
    "snr+1": lambda snr, sigma_data: snr + 1,
    "karras": lambda snr, sigma_data: snr + sigma_data**-2,
    "truncated-snr": lambda snr, sigma_data: snr.clamp(min=1),
    "uniform": lambda snr, sigma_data: torch.ones_like(snr),
}


def loss_weight(weighting: str, sigma: Tensor, sigma_data: float = 0.5) -> Tensor:
    """The weight of a loss at noise level sigma [N]."""
    return WEIGHTINGS[one_of("weighting", weighting, WEIGHTINGS)](sigma**-2, sigma_data)

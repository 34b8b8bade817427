"""The training losses, per image; noise levels and noise are arguments, so a loss is a plain function.

`denoise`, `target` and `teacher` map (x [N, 3, H, W], sigma [N]) to clean images. Targets are detached rather than
computed under no_grad, so that a compiled network runs one and the same program, with the same dropout, at both levels.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from genwright.errors import UserError

Denoise = Callable[[Tensor, Tensor], Tensor]
Norm = Callable[[Tensor, Tensor], Tensor]

HUBER_C = 0.00054  # times the square root of an image's size (Song and Dhariwal 2023, section 3.3)


def l1(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs().flatten(1).mean(dim=1)


def l2(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b) ** 2).flatten(1).mean(dim=1)


def l2_32(a: Tensor, b: Tensor) -> Tensor:
    """l2 of images shrunk to 32 x 32."""
    shrunk = [F.interpolate(x, size=32, mode="bilinear") for x in (a, b)]
    return l2(*shrunk)


def pseudo_huber(a: Tensor, b: Tensor) -> Tensor:
    """(|a - b|^2 + c^2)^1/2 - c, over whole images."""
    difference = (a - b).flatten(1)
    c = HUBER_C * difference.shape[1] ** 0.5
    return ((difference**2).sum(dim=1) + c**2).sqrt() - c


NORMS: dict[str, Norm] = {"l1": l1, "l2": l2, "l2-32": l2_32, "pseudo-huber": pseudo_huber}


def loss_norm(name: str, lpips: Norm | None = None) -> Norm:
    """The norm of that name; "lpips" is the network that was given."""
    if name == "lpips":
        if lpips is None:
            raise UserError("The lpips norm needs its network's weights: --lpips FILE.")
        return lpips
    if name not in NORMS:
        raise UserError(f"There is no loss norm {name!r}; choose one of {', '.join(NORMS)}, lpips.")
    return NORMS[name]


def edm(denoise: Denoise, x0: Tensor, noise: Tensor, sigma: Tensor, weight: Tensor) -> Tensor:
    """EDM's equation 2: weight |D(x0 + sigma n, sigma) - x0|^2, averaged over pixels."""
    return weight * l2(denoise(x0 + _spread(sigma) * noise, sigma), x0)


def consistency(
    denoise: Denoise, target: Denoise, x0: Tensor, noise: Tensor, t: Tensor, r: Tensor, weight: Tensor, norm: Norm
) -> Tensor:
    """Consistency training: D at t against the target's at r < t, same noise (Song et al. 2023, algorithm 3)."""
    goal = target(x0 + _spread(r) * noise, r).detach()
    return weight * norm(denoise(x0 + _spread(t) * noise, t), goal)


def distillation(
    denoise: Denoise,
    target: Denoise,
    teacher: Denoise,
    x0: Tensor,
    noise: Tensor,
    t: Tensor,
    r: Tensor,
    weight: Tensor,
    norm: Norm,
) -> Tensor:
    """Consistency distillation: the teacher's Heun step leads from t to r (Song et al. 2023, algorithm 2)."""
    x = x0 + _spread(t) * noise
    d = (x - teacher(x, t)) / _spread(t)
    x_r = x + _spread(r - t) * d
    d_next = (x_r - teacher(x_r, r)) / _spread(r)
    x_r = x + _spread((r - t) / 2) * (d + d_next)
    goal = target(x_r.detach(), r).detach()
    return weight * norm(denoise(x, t), goal)


def progressive(
    denoise: Denoise,
    teacher: Denoise,
    x0: Tensor,
    noise: Tensor,
    levels: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    norm: Norm,
) -> Tensor:
    """Progressive distillation: one Euler step from t to s should land where the teacher's two, by way of m, do."""
    t, m, s = levels
    x = x0 + _spread(t) * noise
    x_m = x + _spread((m - t) / t) * (x - teacher(x, t))
    x_s = x_m + _spread((s - m) / m) * (x_m - teacher(x_m, m))
    # The image that an Euler step of the student's from x would have to aim at.
    goal = (x - _spread(t / (s - t)) * (x_s - x)).detach()
    return weight * norm(denoise(x, t), goal)


def matching(sample: Tensor, real: Tensor, fake: Tensor) -> Tensor:
    """Distribution matching (Yin et al. 2024, equations 7 and 8): its gradient is towards real and away from fake.

    Both are what a noisy sample looks like clean: to a model of the data, and to one of the samples.
    """
    gradient = (fake - real).detach() / (sample - real).detach().abs().mean(dim=(1, 2, 3), keepdim=True)
    return l2(sample, (sample - gradient).detach()) / 2


def _spread(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)

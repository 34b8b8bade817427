"""The training losses, one number per image; noise and noise levels are arguments, so a loss is a plain function.

`denoise`, `target` and `teacher` map (x [N, 3, H, W], sigma [N]) to clean images. Targets are detached rather than
computed under no_grad, because a compiled network then runs the same program, with the same dropout, at both levels.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from genwright.arguments import one_of
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
    """Look up a norm by name; "lpips" is the network that the caller passes."""
    if one_of("loss_norm", name, [*NORMS, "lpips"]) == "lpips":
        if lpips is None:
            raise UserError("The loss norm lpips needs the weights of its network: --lpips FILE.")
        return lpips
    return NORMS[name]


def edm(denoise: Denoise, x0: Tensor, noise: Tensor, sigma: Tensor, weight: Tensor) -> Tensor:
    """EDM's equation 2: weight |D(x0 + sigma n, sigma) - x0|^2, averaged over pixels."""
    return weight * l2(denoise(x0 + per_image(sigma) * noise, sigma), x0)


def consistency(
    denoise: Denoise, target: Denoise, x_t: Tensor, x_r: Tensor, t: Tensor, r: Tensor, weight: Tensor, norm: Norm
) -> Tensor:
    """The student's image from x_t against the target's from x_r, at r < t (Song et al. 2023, algorithms 2 and 3).

    Consistency training takes both from one image and one noise; distillation takes x_r from `heun_step`.
    """
    goal = target(x_r.detach(), r).detach()
    return weight * norm(denoise(x_t, t), goal)


def heun_step(teacher: Denoise, x: Tensor, t: Tensor, r: Tensor) -> Tensor:
    """The teacher's step from x at noise level t down to r."""
    d = (x - teacher(x, t)) / per_image(t)
    x_r = x + per_image(r - t) * d
    d_next = (x_r - teacher(x_r, r)) / per_image(r)
    return x + per_image((r - t) / 2) * (d + d_next)


def progressive(
    denoise: Denoise,
    teacher: Denoise,
    x0: Tensor,
    noise: Tensor,
    levels: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    norm: Norm,
) -> Tensor:
    """Progressive distillation: an Euler step from t to s should end where the teacher's two, by way of m, end."""
    t, m, s = levels
    x = x0 + per_image(t) * noise
    x_m = x + per_image((m - t) / t) * (x - teacher(x, t))
    x_s = x_m + per_image((s - m) / m) * (x_m - teacher(x_m, m))
    # An Euler step from x to x_s is a step towards this image.
    goal = (x - per_image(t / (s - t)) * (x_s - x)).detach()
    return weight * norm(denoise(x, t), goal)


def distribution_matching(sample: Tensor, real: Tensor, fake: Tensor) -> Tensor:
    """Distribution matching (Yin et al. 2024, equations 7 and 8): the gradient moves samples towards real, from fake.

    Both are estimates of the clean sample: `real` by a model of the data, `fake` by a model of the student's samples.
    """
    gradient = (fake - real).detach() / (sample - real).detach().abs().mean(dim=(1, 2, 3), keepdim=True)
    return l2(sample, (sample - gradient).detach()) / 2


def per_image(values: Tensor) -> Tensor:
    """Numbers [N] as [N, 1, 1, 1], to multiply images with."""
    return values.view(-1, 1, 1, 1)

"""The original's zero-shot editing: its functions over Genwright's projections (Song et al. 2023, algorithm 4)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cm.random_util import Generator
from cm.samplers import Denoiser, stochastic_iterative_sampler
from genwright.errors import UserError
from genwright.images.sampling.editing import PATCH, Projection, keep_brightness, keep_patch_means

_MASKS = 7  # the images of a batch in a row that share a mask


def iterative_colorization(
    distiller: Denoiser,
    images: Tensor,
    x: Tensor,
    ts: Sequence[int],
    t_min: float = 0.002,
    t_max: float = 80.0,
    rho: float = 7.0,
    steps: int = 40,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Colours for the brightness of `images`; also returns that."""
    return _edit(distiller, keep_brightness(images), keep_brightness, x, ts, (t_min, t_max, rho, steps), generator)


def iterative_superres(
    distiller: Denoiser,
    images: Tensor,
    x: Tensor,
    ts: Sequence[int],
    t_min: float = 0.002,
    t_max: float = 80.0,
    rho: float = 7.0,
    steps: int = 40,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Details for the means of the 8 x 8 patches of `images`; also returns those."""
    known = keep_patch_means(PATCH)
    return _edit(distiller, known(images), known, x, ts, (t_min, t_max, rho, steps), generator)


def iterative_inpainting(
    distiller: Denoiser,
    images: Tensor,
    x: Tensor,
    ts: Sequence[int],
    t_min: float = 0.002,
    t_max: float = 80.0,
    rho: float = 7.0,
    steps: int = 40,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Seven images of which only the background of the letter S is known, seven of which only the letter is, and so on.

    Also returns the known parts on black.
    """
    mask = _letter_masks(x)
    known = images * mask - (1 - mask)
    return _edit(distiller, known, lambda image: image * mask, x, ts, (t_min, t_max, rho, steps), generator)


def _edit(
    distiller: Denoiser,
    image: Tensor,
    known: Projection,
    x: Tensor,
    ts: Sequence[int],
    schedule: tuple[float, float, float, int],
    generator: Generator | None,
) -> tuple[Tensor, Tensor]:
    def estimate(x: Tensor, sigma: Tensor) -> Tensor:
        x0 = distiller(x, sigma).clamp(-1, 1)
        return known(image) + x0 - known(x0)

    t_min, t_max, rho, steps = schedule
    options: dict[str, Any] = {"t_min": t_min, "t_max": t_max, "rho": rho, "steps": steps}
    return stochastic_iterative_sampler(estimate, x, ts, generator, **options), image


def _letter_masks(x: Tensor) -> Tensor:
    """1 outside the letter for seven images, inside it for the next seven, and so on."""
    from PIL import Image, ImageDraw, ImageFont

    try:
        font = ImageFont.truetype("arial.ttf", 250)
    except OSError:
        raise UserError("iterative_inpainting draws its mask with the font arial.ttf, which was not found.") from None
    if len(x) % _MASKS:
        raise UserError(f"iterative_inpainting needs a multiple of {_MASKS} images, not {len(x)}.")
    canvas = Image.new("L", (x.shape[-1], x.shape[-1]), 255)
    ImageDraw.Draw(canvas).text((50, 0), "S", font=font, fill=0)
    outside = torch.from_numpy(np.array(canvas)).to(x.device) > 0
    letter = torch.arange(len(x), device=x.device) // _MASKS % 2 == 1
    return (outside ^ letter.view(-1, 1, 1, 1)).to(x.dtype)

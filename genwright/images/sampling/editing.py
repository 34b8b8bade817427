"""Zero-shot editing with a consistency model (Song et al. 2023, algorithm 4).

Editing is multistep sampling in which the known part of every estimate is replaced by that of the given image.

The known part is an orthogonal projection P: marked pixels, brightness or patch means. An estimate x becomes
P(image) + x - P(x).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genwright.arguments import one_of
from genwright.errors import UserError
from genwright.images.data.dataset import open_image
from genwright.images.sampling.samplers import Denoise

Projection = Callable[[Tensor], Tensor]
TASKS = ("inpaint", "colorize", "superres")
PATCH = 8  # pixels per side of the patches whose means superres keeps, if the image is as large as the model's
SEARCH_SIGMA = 3.0  # high enough that estimates depend on the label, low enough that the known part shows


def keep_pixels(mask: Tensor) -> Projection:
    """Inpainting: the pixels where mask [H, W] is 1 are known."""
    return lambda x: x * mask.to(x)


def keep_brightness(x: Tensor) -> Tensor:
    """Colorization: the component along luma (ITU-R BT.601) is known."""
    luma = F.normalize(x.new_tensor([0.2989, 0.5870, 0.1140]), dim=0)
    return torch.einsum("nchw,c,d->ndhw", x, luma, luma)


def keep_patch_means(patch: int) -> Projection:
    """Super-resolution: the mean colour of every patch is known."""
    return lambda x: F.interpolate(F.avg_pool2d(x, patch), scale_factor=float(patch), mode="nearest")


def edited(denoise: Denoise, image: Tensor, known: Projection) -> Denoise:
    """Wrap `denoise` so that its estimates have the known part of `image` [1, 3, H, W]."""
    fixed = known(image)

    def estimate(x: Tensor, sigma: float) -> Tensor:
        x0 = denoise(x, sigma).clamp(-1, 1)
        return fixed + x0 - known(x0)

    return estimate


def disagreement(denoise: Denoise, image: Tensor, known: Projection, noise: Tensor, sigma: float) -> Tensor:
    """The mean squared difference [N] between the known part and its estimates from noise [N, 3, H, W]."""
    fixed = known(image)
    return (known(denoise(fixed + sigma * noise, sigma)) - fixed).square().mean((1, 2, 3))


def task_projection(task: str, image: Tensor, size: int, mask: Tensor | None) -> tuple[Tensor, Projection]:
    """The image [1, 3, size, size] and the projection of `task`; for superres, a smaller image is enlarged first."""
    one_of("task", task, TASKS)
    _check_image(image)
    if (task == "inpaint") != (mask is not None):
        raise UserError("A mask, white where to paint, must be given for inpaint and for no other task.")
    height, width = image.shape[-2:]
    if task == "superres" and height == width and height < size and size % height == 0:
        patch = size // height
        image = F.interpolate(image, scale_factor=float(patch), mode="nearest")
        return image, keep_patch_means(patch)
    if (height, width) != (size, size):
        smaller = f" (or, for superres, a square one whose side divides {size})" if task == "superres" else ""
        raise UserError(f"The image must be {size}x{size} for this model{smaller}, not {width}x{height}.")
    if mask is not None:
        _check_mask(mask, size)
        return image, keep_pixels(1 - mask.float())
    if task == "colorize":
        return image, keep_brightness
    if size % PATCH:
        raise UserError(f"superres of a full-size image needs a model of a multiple of {PATCH} pixels, not {size}.")
    return image, keep_patch_means(PATCH)


def _check_image(image: Any) -> None:
    if not isinstance(image, Tensor) or image.dim() != 4 or image.shape[:2] != (1, 3) or not image.is_floating_point():
        raise UserError("The image must be a tensor [1, 3, H, W] of floating-point numbers between -1 and 1.")
    if not image.numel() or not image.abs().max() <= 1:
        raise UserError("The image's values must be between -1 and 1.")


def _check_mask(mask: Any, size: int) -> None:
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        raise UserError("The mask must be a tensor [H, W] of ones, where to paint, and zeros.")
    if mask.shape != (size, size):
        raise UserError(f"The mask must be {size}x{size} as the image, not {mask.shape[1]}x{mask.shape[0]}.")
    if not ((mask == 0) | (mask == 1)).all():
        raise UserError("The mask's values must be 1, where to paint, or 0.")


def read_image(path: Path) -> Tensor:
    """Read an image file as [1, 3, H, W] in [-1, 1]."""
    pixels = torch.from_numpy(np.array(open_image(path, "RGB")))
    return pixels.permute(2, 0, 1)[None].float() / 127.5 - 1


def read_mask(path: Path) -> Tensor:
    """Read a mask file as [H, W]: 1 where it is more white than black."""
    return (torch.from_numpy(np.array(open_image(path, "L"))) > 127.5).float()

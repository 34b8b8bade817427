"""Zero-shot editing with a consistency model (Song et al. 2023, algorithm 4): multistep sampling in which every
estimate's known part is replaced by the given image's.

The known part is an orthogonal projection P: marked pixels, brightness or patch means. An estimate x becomes
P(image) + x - P(x).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from genwright.arguments import one_of
from genwright.errors import UserError
from genwright.images.sampling.samplers import Denoise

Projection = Callable[[Tensor], Tensor]
TASKS = ("inpaint", "colorize", "superres")
PATCH = 8  # of a whole image, superres keeps the means of patches of so many pixels a side
SEARCH_SIGMA = 3.0  # high enough that an estimate depends on its label, low enough that the known part shows


def keep_pixels(mask: Tensor) -> Projection:
    """Inpainting: what is known are the pixels where mask [H, W] is 1."""
    return lambda x: x * mask.to(x)


def keep_brightness(x: Tensor) -> Tensor:
    """Colourisation: what is known is the component along the direction of luma (ITU-R BT.601)."""
    luma = F.normalize(x.new_tensor([0.2989, 0.5870, 0.1140]), dim=0)
    return torch.einsum("nchw,c,d->ndhw", x, luma, luma)


def keep_patch_means(patch: int) -> Projection:
    """Super-resolution: what is known is each patch's mean colour."""
    return lambda x: F.interpolate(F.avg_pool2d(x, patch), scale_factor=float(patch), mode="nearest")


def edited(denoise: Denoise, image: Tensor, known: Projection) -> Denoise:
    """`denoise`, its estimates agreeing with `image` [1, 3, H, W] in the known part."""
    fixed = known(image)

    def estimate(x: Tensor, sigma: float) -> Tensor:
        x0 = denoise(x, sigma).clamp(-1, 1)
        return fixed + x0 - known(x0)

    return estimate


def disagreement(denoise: Denoise, image: Tensor, known: Projection, noise: Tensor, sigma: float) -> Tensor:
    """How far each row's estimate of the noisy known part is from it, as the mean square [N]; noise [N, 3, H, W]."""
    fixed = known(image)
    return (known(denoise(fixed + sigma * noise, sigma)) - fixed).square().mean((1, 2, 3))


def task_projection(task: str, image: Tensor, size: int, mask: Tensor | None) -> tuple[Tensor, Projection]:
    """The image [1, 3, size, size] and the projection of `task`; a smaller image of superres is enlarged first."""
    one_of("editing task", task, TASKS)
    _check_image(image)
    if (task == "inpaint") != (mask is not None):
        raise UserError("Inpainting, and no other task, takes a mask, white where the image is painted anew.")
    height, width = image.shape[-2:]
    if task == "superres" and height == width and height < size and size % height == 0:
        patch = size // height
        image = F.interpolate(image, scale_factor=float(patch), mode="nearest")
        return image, keep_patch_means(patch)
    if (height, width) != (size, size):
        smaller = f" (or, for superres, a square one whose side divides {size})" if task == "superres" else ""
        raise UserError(f"The image is {width}x{height}, but this model edits {size}x{size} ones{smaller}.")
    if mask is not None:
        _check_mask(mask, size)
        return image, keep_pixels(1 - mask.float())
    if task == "colorize":
        return image, keep_brightness
    if size % PATCH:
        raise UserError(f"superres of a whole image takes a model of a multiple of {PATCH} pixels, not of {size}.")
    return image, keep_patch_means(PATCH)


def _check_image(image: Any) -> None:
    if not isinstance(image, Tensor) or image.dim() != 4 or image.shape[:2] != (1, 3) or not image.is_floating_point():
        raise UserError("The image must be a tensor [1, 3, H, W] of floating-point numbers between -1 and 1.")
    if not image.numel() or not image.abs().max() <= 1:
        raise UserError("The image's values must be between -1 and 1.")


def _check_mask(mask: Any, size: int) -> None:
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        raise UserError("The mask must be a tensor [H, W] of ones, where the image is painted anew, and zeros.")
    if mask.shape != (size, size):
        raise UserError(f"The mask is {mask.shape[1]}x{mask.shape[0]}, but the image is {size}x{size}.")
    if not ((mask == 0) | (mask == 1)).all():
        raise UserError("The mask's values must be 1, where the image is painted anew, or 0.")


def read_image(path: Path) -> Tensor:
    """An image file as [1, 3, H, W] in [-1, 1]."""
    return _read(path, "RGB").permute(2, 0, 1)[None] / 127.5 - 1


def read_mask(path: Path) -> Tensor:
    """A mask file as [H, W]: 1 where it is more white than black."""
    return (_read(path, "L") > 127.5).float()


def _read(path: Path, mode: str) -> Tensor:
    import numpy as np
    from PIL import Image

    try:
        with Image.open(path) as image:
            return torch.from_numpy(np.array(image.convert(mode))).float()
    except FileNotFoundError as error:
        raise UserError(f"There is no image file {path}.") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not an image file that Pillow can read.") from error

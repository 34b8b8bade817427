"""LPIPS (Zhang et al. 2018) on VGG-16 with average pooling, as in piq, with which the original trained.

The weights are published files: torchvision's VGG-16, and the heads of lpips or piq.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from genwright.errors import UserError
from genwright.images.model.checkpoint import check_state, read_tensors

# Each stage's convolutions by their index in torchvision's `features`; a pooling comes between two stages.
STAGES = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
WIDTHS = (64, 128, 256, 512, 512)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
SIZE = 224  # images smaller than 256 pixels are resized to this, as in the original


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of every tensor by its name."""
    expected: dict[str, tuple[int, ...]] = {}
    channels = 3
    for stage, (layers, width) in enumerate(zip(STAGES, WIDTHS, strict=True)):
        for layer in layers:
            expected[f"features.{layer}.weight"] = (width, channels, 3, 3)
            expected[f"features.{layer}.bias"] = (width,)
            channels = width
        expected[f"lin{stage}.model.1.weight"] = (1, width, 1, 1)
    return expected


class Lpips:
    """The distance of images a and b [N, 3, H, W] in [-1, 1]: [N]."""

    def __init__(self, state: dict[str, Tensor]):
        self.state = state

    @classmethod
    def load(cls, paths: Sequence[Path], device: torch.device) -> "Lpips":
        """Load one file with all tensors, or one of VGG-16 and one of the heads."""
        state: dict[str, Tensor] = {}
        for path in paths:
            state |= _read(path)
        check_state(" and ".join(map(str, paths)), state, shapes(), "LPIPS")
        return cls({name: tensor.float().to(device) for name, tensor in state.items()})

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        distance = a.new_zeros(len(a))
        for stage, (x, y) in enumerate(zip(self._features(a), self._features(b), strict=True)):
            difference = (F.normalize(x, dim=1, eps=1e-10) - F.normalize(y, dim=1, eps=1e-10)) ** 2
            head = self.state[f"lin{stage}.model.1.weight"].to(a.dtype)
            distance = distance + F.conv2d(difference, head).mean(dim=(1, 2, 3))
        return distance

    def _features(self, x: Tensor) -> list[Tensor]:
        if x.shape[-1] < 256:
            x = F.interpolate(x, size=SIZE, mode="bilinear")
        x = ((x + 1) / 2 - x.new_tensor(MEAN).view(1, 3, 1, 1)) / x.new_tensor(STD).view(1, 3, 1, 1)
        features = []
        for stage, layers in enumerate(STAGES):
            if stage:
                x = F.avg_pool2d(x, 2)
            for layer in layers:
                weight, bias = (self.state[f"features.{layer}.{part}"].to(x.dtype) for part in ("weight", "bias"))
                x = F.relu(F.conv2d(x, weight, bias, padding=1))
            features.append(x)
        return features


def _read(path: Path) -> dict[str, Tensor]:
    # torchvision's file also has a classifier; piq's is a list of the heads.
    found = read_tensors(path)
    if isinstance(found, list | tuple):
        found = {f"lin{stage}.model.1.weight": head for stage, head in enumerate(found)}
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise UserError(f"{path} must hold VGG-16's tensors by name or the five heads of LPIPS.")
    return {name: tensor for name, tensor in found.items() if not str(name).startswith("classifier.")}

"""LPIPS (Zhang et al. 2018) on VGG-16: a perceptual distance, for weights that are given.

The file holds torchvision's VGG-16 convolutions (`features.0.weight`, ...) and the heads (`lin0.model.1.weight`, ...).
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from genwright.images.checkpoint import check_state, read_state

# Each stage's convolutions by their index in torchvision's `features`; a pooling comes between two stages.
STAGES = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
WIDTHS = (64, 128, 256, 512, 512)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
SIZE = 224  # what images are enlarged to, unless they are 256 or more, as in the original


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor's shape by its name."""
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
    def load(cls, path: Path, device: torch.device) -> "Lpips":
        state = read_state(path)
        check_state(str(path), {name: tuple(tensor.shape) for name, tensor in state.items()}, shapes(), "LPIPS")
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
                x = F.max_pool2d(x, 2)
            for layer in layers:
                weight, bias = (self.state[f"features.{layer}.{part}"].to(x.dtype) for part in ("weight", "bias"))
                x = F.relu(F.conv2d(x, weight, bias, padding=1))
            features.append(x)
        return features

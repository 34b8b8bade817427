"""The InceptionV3 of FID (2015-12-05), with its blocks, branches and layers as data, and torch-fidelity's key names.

Its pooling differs from torchvision's: averages do not count the padding, and the last block takes maxima.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genwright.errors import UserError
from genwright.images.model.checkpoint import check_state

SIZE = 299
CLASSES = 1008
BATCH = 32


class Conv(NamedTuple):
    """A convolution with batch norm and ReLU; `pad` keeps the size at stride 1."""

    name: str
    out: int
    kernel: tuple[int, int]
    stride: int = 1
    pad: bool = True


def _convs(text: str) -> list[Conv]:
    # Layers such as "branch5x5_2 64 5x5", joined by " > "; "/2" means stride 2, and "/2" and "valid" mean no padding.
    convs = []
    for layer in text.split(" > "):
        name, out, kernel, *valid = layer.split()
        size, _, stride = kernel.partition("/")
        height, width = size.split("x")
        convs.append(Conv(name, int(out), (int(height), int(width)), int(stride or 1), not (stride or valid)))
    return convs


class Branch(NamedTuple):
    """An optional pooling, a chain of convolutions, and an optional fork of convolutions, which are concatenated."""

    pool: str | None
    chain: list[Conv]
    fork: list[Conv]


def _branch(text: str, pool: str | None = None, fork: str = "") -> Branch:
    return Branch(pool, _convs(text) if text else [], _convs(fork) if fork else [])


def _block_a(pool_width: int) -> list[Branch]:
    return [
        _branch("branch1x1 64 1x1"),
        _branch("branch5x5_1 48 1x1 > branch5x5_2 64 5x5"),
        _branch("branch3x3dbl_1 64 1x1 > branch3x3dbl_2 96 3x3 > branch3x3dbl_3 96 3x3"),
        _branch(f"branch_pool {pool_width} 1x1", pool="average"),
    ]


def _block_c(width: int) -> list[Branch]:
    twice = f"branch7x7dbl_2 {width} 7x1 > branch7x7dbl_3 {width} 1x7 > branch7x7dbl_4 {width} 7x1"
    return [
        _branch("branch1x1 192 1x1"),
        _branch(f"branch7x7_1 {width} 1x1 > branch7x7_2 {width} 1x7 > branch7x7_3 192 7x1"),
        _branch(f"branch7x7dbl_1 {width} 1x1 > {twice} > branch7x7dbl_5 192 1x7"),
        _branch("branch_pool 192 1x1", pool="average"),
    ]


def _block_e(pool: str) -> list[Branch]:
    return [
        _branch("branch1x1 320 1x1"),
        _branch("branch3x3_1 384 1x1", fork="branch3x3_2a 384 1x3 > branch3x3_2b 384 3x1"),
        _branch(
            "branch3x3dbl_1 448 1x1 > branch3x3dbl_2 384 3x3",
            fork="branch3x3dbl_3a 384 1x3 > branch3x3dbl_3b 384 3x1",
        ),
        _branch("branch_pool 192 1x1", pool=pool),
    ]


STEM = [
    _convs("Conv2d_1a_3x3 32 3x3/2 > Conv2d_2a_3x3 32 3x3 valid > Conv2d_2b_3x3 64 3x3"),
    _convs("Conv2d_3b_1x1 80 1x1 > Conv2d_4a_3x3 192 3x3 valid"),
]  # each followed by a max pooling
BLOCKS = {
    "Mixed_5b": _block_a(32),
    "Mixed_5c": _block_a(64),
    "Mixed_5d": _block_a(64),
    "Mixed_6a": [
        _branch("branch3x3 384 3x3/2"),
        _branch("branch3x3dbl_1 64 1x1 > branch3x3dbl_2 96 3x3 > branch3x3dbl_3 96 3x3/2"),
        _branch("", pool="halving maximum"),
    ],
    "Mixed_6b": _block_c(128),
    "Mixed_6c": _block_c(160),
    "Mixed_6d": _block_c(160),
    "Mixed_6e": _block_c(192),
    "Mixed_7a": [
        _branch("branch3x3_1 192 1x1 > branch3x3_2 320 3x3/2"),
        _branch("branch7x7x3_1 192 1x1 > branch7x7x3_2 192 1x7 > branch7x7x3_3 192 7x1 > branch7x7x3_4 192 3x3/2"),
        _branch("", pool="halving maximum"),
    ],
    "Mixed_7b": _block_e("average"),
    "Mixed_7c": _block_e("maximum"),
}
SPATIAL = "Mixed_6d.branch1x1"  # sFID's features: the first 7 channels of its 17 x 17 output


class Inception:
    """The network; batch norms are folded into the convolutions."""

    def __init__(self, state: dict[str, Tensor], source: str = "the weights", device: str | torch.device = "cpu"):
        state = {name: tensor.float() for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
        check_state(source, state, shapes(), "Inception")
        self.device = torch.device(device)
        self.weights = {}
        for name in {key.removesuffix(".conv.weight") for key in state if key.endswith(".conv.weight")}:
            gain = state[f"{name}.bn.weight"] / (state[f"{name}.bn.running_var"] + 1e-3).sqrt()
            bias = state[f"{name}.bn.bias"] - state[f"{name}.bn.running_mean"] * gain
            weight = state[f"{name}.conv.weight"] * gain.view(-1, 1, 1, 1)
            self.weights[name] = weight.to(self.device), bias.to(self.device)
        self.classifier = state["fc.weight"].to(self.device)

    @torch.no_grad()
    def features(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """pool_3 features [N, 2048], spatial features [N, 2023] and class probabilities [N, 1008] of uint8 NHWC."""
        parts = []
        # TensorFloat-32, cuDNN's default for float32, would change the features by 1e-3.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            for start in range(0, len(images), BATCH):
                parts.append(self._batch(images[start : start + BATCH]))
        pooled, spatial, probabilities = (np.concatenate(part) for part in zip(*parts, strict=True))
        return pooled, spatial, probabilities

    def _batch(self, images: np.ndarray) -> list[np.ndarray]:
        x = torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float()
        pooled, spatial = self(x)
        # Without the bias, as OpenAI's evaluator computes the Inception Score.
        probabilities = (pooled @ self.classifier.T).softmax(dim=1)
        return [t.cpu().numpy() for t in (pooled, spatial, probabilities)]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # x [N, 3, H, W] in 0..255 -> [N, 2048], [N, 2023]
        x = (resize_like_tensorflow(x) - 128) / 128
        for convs in STEM:
            for conv in convs:
                x = self._conv(conv.name, conv, x)
            x = F.max_pool2d(x, 3, stride=2)
        spatial = x
        for block, branches in BLOCKS.items():
            outputs = []
            for branch in branches:
                h = _pool(branch.pool, x)
                for conv in branch.chain:
                    h = self._conv(f"{block}.{conv.name}", conv, h)
                    if f"{block}.{conv.name}" == SPATIAL:
                        spatial = h[:, :7].permute(0, 2, 3, 1).flatten(1)
                outputs += [self._conv(f"{block}.{conv.name}", conv, h) for conv in branch.fork] or [h]
            x = torch.cat(outputs, dim=1)
        return x.mean(dim=(2, 3)), spatial

    def _conv(self, name: str, conv: Conv, x: Tensor) -> Tensor:
        weight, bias = self.weights[name]
        padding = (conv.kernel[0] // 2, conv.kernel[1] // 2) if conv.pad else (0, 0)
        return F.relu(F.conv2d(x, weight, bias, stride=conv.stride, padding=padding))


def shapes() -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its name."""
    result: dict[str, tuple[int, ...]] = {}
    for name, conv, channels in layers():
        result[f"{name}.conv.weight"] = (conv.out, channels, *conv.kernel)
        for key in ("weight", "bias", "running_mean", "running_var"):
            result[f"{name}.bn.{key}"] = (conv.out,)
    return result | {"fc.weight": (CLASSES, 2048), "fc.bias": (CLASSES,)}


def layers() -> Iterator[tuple[str, Conv, int]]:
    """The full name of every convolution, the convolution, and its number of input channels."""
    channels = 3
    for convs in STEM:
        for conv in convs:
            yield conv.name, conv, channels
            channels = conv.out
    for block, branches in BLOCKS.items():
        total = 0
        for branch in branches:
            width = channels
            for conv in branch.chain:
                yield f"{block}.{conv.name}", conv, width
                width = conv.out
            for conv in branch.fork:
                yield f"{block}.{conv.name}", conv, width
            total += sum(conv.out for conv in branch.fork) or width
        channels = total


def resize_like_tensorflow(x: Tensor) -> Tensor:
    """Resize bilinearly to 299 x 299 as in TensorFlow 1: pixel i of the result is at i * size / 299 of the source."""
    for dim in (2, 3):
        size = x.shape[dim]
        if size < 1:
            raise UserError("Images must have one pixel or more.")
        at = torch.arange(SIZE, device=x.device, dtype=torch.float32) * (size / SIZE)
        low = at.floor().long().clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        fraction = (at - low).view(-1, *([1] * (3 - dim)))
        x = torch.lerp(x.index_select(dim, low), x.index_select(dim, high), fraction.to(x.dtype))
    return x


def _pool(kind: str | None, x: Tensor) -> Tensor:
    if kind == "average":
        return F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
    if kind == "maximum":
        return F.max_pool2d(x, 3, stride=1, padding=1)
    return F.max_pool2d(x, 3, stride=2) if kind == "halving maximum" else x

"""The operations of a UNet block: plain PyTorch, or fused Triton kernels for inference on a GPU.

A convolution's bias is added by the operation after it (the norm or the residual sum), because cuDNN would need another
pass over the activations for it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Apply `layer` without its bias; a 1x1 convolution of channels-last activations is a matrix product."""
    if layer.kernel_size == (1, 1):
        weight = layer.weight.view(layer.out_channels, layer.in_channels)
        return F.linear(x.permute(0, 2, 3, 1), weight).permute(0, 3, 1, 2)
    return F.conv2d(x, layer.weight, stride=layer.stride, padding=layer.padding)


def norm_act(
    x: Tensor,
    norm: nn.GroupNorm,
    *,
    add: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    silu: bool = True,
    resampled: str | None = None,
) -> Tensor:
    """silu(GroupNorm(x + add) * (1 + scale) + shift), computed in float32, then resampled.

    x [N, C, H, W]; add [C] or [N, C]; scale and shift [N, C], both or neither.
    """
    if _fused(x):
        from genwright.kernels.triton import images as kernels

        return kernels.norm_act(x, norm, add, scale, shift, silu, resampled)
    dtype = torch.promote_types(x.dtype, torch.float32)
    h = x.to(dtype)
    if add is not None:
        h = h + add.to(dtype).view(-1, x.shape[1], 1, 1)
    h = F.group_norm(h, norm.num_groups, norm.weight, norm.bias, norm.eps)
    if scale is not None and shift is not None:
        h = h * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
    return resample((F.silu(h) if silu else h).to(x.dtype), resampled)


def resample(x: Tensor, how: str | None) -> Tensor:
    """Double ("up", repeating pixels) or halve ("down", averaging them) the size; None returns x."""
    if how is None:
        return x
    if _fused(x):
        from genwright.kernels.triton import images as kernels

        return kernels.resample(x, how)
    return F.interpolate(x, scale_factor=2.0, mode="nearest") if how == "up" else F.avg_pool2d(x, 2)


def add_residual(h: Tensor, x: Tensor, bias: Tensor) -> Tensor:
    """h + x + bias per channel; h and x [N, C, H, W], bias [C]."""
    if _fused(h):
        from genwright.kernels.triton import images as kernels

        return kernels.add_residual(h, x, bias)
    return h + x + bias.to(h.dtype).view(1, -1, 1, 1)


def _fused(x: Tensor) -> bool:
    # The kernels have no backward pass and take half-precision activations only.
    return x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and not torch.is_grad_enabled()

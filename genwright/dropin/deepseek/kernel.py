"""DeepSeek's kernel module: FP8 with a scale per 128 values of an activation, or per block of a weight."""

import torch
from torch import Tensor

from genwright.quant.fp8 import LARGEST, VALUES, Fp8Blocks

__all__ = ["act_quant", "fp8_gemm", "weight_dequant"]

BLOCK = 128  # inputs per scale in `fp8_gemm`, and outputs per scale of a weight


def act_quant(x: Tensor, block_size: int = 128, scale_fmt: str | None = None) -> tuple[Tensor, Tensor]:
    """FP8 values of x, and a scale for each `block_size` of a row; `ue8m0` rounds scales up to powers of two."""
    assert x.is_contiguous(), "Input tensor must be contiguous"
    assert x.size(-1) % block_size == 0, f"Last dimension size must be divisible by block_size ({block_size})"
    groups = x.float().unflatten(-1, (-1, block_size))
    scales = groups.abs().amax(dim=-1).clamp(min=1e-4) / LARGEST
    if scale_fmt == "ue8m0":
        scales = scales.log2().ceil().exp2()
    return (groups / scales[..., None]).flatten(-2).to(VALUES), scales


def weight_dequant(x: Tensor, s: Tensor, block_size: int = 128) -> Tensor:
    """A matrix of FP8 values in torch's default dtype; s has a scale for each block of `block_size` squared."""
    assert x.is_contiguous() and s.is_contiguous(), "Input tensors must be contiguous"
    assert x.dim() == 2 and s.dim() == 2, "Input tensors must have 2 dimensions"
    return Fp8Blocks(x, s.float(), block_size, block_size).dequantize(torch.get_default_dtype())


def fp8_gemm(a: Tensor, a_s: Tensor, b: Tensor, b_s: Tensor) -> Tensor:
    """a b^T in torch's default dtype, with a [..., k] from `act_quant` and a weight b [n, k], summed in float32."""
    assert a.is_contiguous() and b.is_contiguous(), "Input tensors must be contiguous"
    assert a_s.is_contiguous() and b_s.is_contiguous(), "Scaling factor tensors must be contiguous"
    rows = a.flatten(0, -2)
    a_scales = a_s.flatten(0, -2)
    b_scales = b_s.repeat_interleave(BLOCK, dim=0)[: len(b)]
    total = torch.zeros(len(rows), len(b), device=a.device, dtype=torch.float32)
    blocks = zip(rows.split(BLOCK, dim=1), b.split(BLOCK, dim=1), strict=True)
    for block, (x, weight) in enumerate(blocks):
        total += _product(x, weight) * a_scales[:, block, None] * b_scales[:, block]
    return total.to(torch.get_default_dtype()).unflatten(0, a.shape[:-1])


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T in float32: FP8 values are exact in bfloat16, whose products a GPU sums in float32."""
    if x.is_cuda:
        return torch.mm(x.bfloat16(), weight.bfloat16().t(), out_dtype=torch.float32)
    return x.float() @ weight.float().t()

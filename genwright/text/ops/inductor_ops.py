"""The triton backend with torch.compile in the place of our own products: an alternative to measure against."""

import torch

from genwright.quant.packed import Weight
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.torch_ops import Reference, Weights
from genwright.text.ops.triton_ops import Fused

_PLAIN = Reference()


@torch.compile(dynamic=False)
def _norm_linear(
    x: torch.Tensor, norm: torch.Tensor, weight: Weight, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    return _PLAIN.product(rms_norm(x, norm, eps), weight, bias)


@torch.compile(dynamic=False)
def _add_linear(residual: torch.Tensor, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    return residual + _PLAIN.product(x, weight, bias)


class Compiled(Fused):
    """What stands before and after attention is compiled; attention and the cache's writes stay our kernels."""

    def norm_linear(self, x: torch.Tensor, weights: Weights, norm: str, name: str, eps: float) -> torch.Tensor:
        return _norm_linear(x, weights[norm], weights[name], weights.get(f"{name}.bias"), eps)

    def add_linear(self, residual: torch.Tensor, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        return _add_linear(residual, x, weights[name], weights.get(f"{name}.bias"))

    def add_gated_mlp(self, x: torch.Tensor, weights: Weights, norm: str, eps: float) -> torch.Tensor:
        gated = self.silu_gate(self.norm_linear(x, weights, norm, "gate_up", eps))
        return self.add_linear(x, gated, weights, "down")

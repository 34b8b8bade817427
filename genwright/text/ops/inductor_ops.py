"""The inductor backend: torch.compile in the place of our own products on a GPU, an alternative to measure against."""

from typing import Any

import torch

from genwright.quant.packed import Weight
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.protocol import Weights
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.ops.triton_ops import TritonOps

_PLAIN = TorchOps()


@torch.compile(dynamic=False)
def _norm_linear(
    x: torch.Tensor, norm: torch.Tensor, weight: Weight, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    return _PLAIN.product(rms_norm(x, norm, eps), weight, bias)


@torch.compile(dynamic=False)
def _add_product(
    residual: torch.Tensor | None, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None
) -> torch.Tensor:
    y = _PLAIN.product(x, weight, bias)
    return y if residual is None else residual + y


class InductorOps(TritonOps):
    """What stands before and after attention is compiled; attention and the cache's writes stay our kernels."""

    def norm_linear(self, x: torch.Tensor, weights: Weights, norm: str, name: str, eps: float) -> torch.Tensor:
        return _norm_linear(x, weights[norm], weights[name], weights.get(f"{name}.bias"), eps)

    def fused_linear(self, *args: Any, **epilogue: Any) -> None:
        """None, so that products go to the compiler."""

    def add_product(
        self, residual: torch.Tensor | None, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return _add_product(residual, x, weight, bias)

"""The inductor backend: matrix products by torch.compile on a GPU, to compare our own kernels with."""

from typing import Any

import torch
from torch import Tensor

from genwright.quant.packed import Weight
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.protocol import Weights
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.ops.triton_ops import TritonOps

_PLAIN = TorchOps()


@torch.compile(dynamic=False)
def _norm_linear(x: Tensor, norm: Tensor, weight: Weight, bias: Tensor | None, eps: float) -> Tensor:
    return _PLAIN.product(rms_norm(x, norm, eps), weight, bias)


@torch.compile(dynamic=False)
def _add_product(residual: Tensor | None, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    y = _PLAIN.product(x, weight, bias)
    return y if residual is None else residual + y


class InductorOps(TritonOps):
    """Products with their norms and residuals are compiled; attention and the writes to the cache use our kernels."""

    def norm_linear(self, x: Tensor, weights: Weights, norm: str, name: str, eps: float) -> Tensor:
        return _norm_linear(x, weights[norm], weights[name], weights.get(f"{name}.bias"), eps)

    def fused_linear(self, *args: Any, **fused: Any) -> None:
        """None, so that every product is compiled."""

    def add_product(self, residual: Tensor | None, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        return _add_product(residual, x, weight, bias)

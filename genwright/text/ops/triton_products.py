"""Products of the triton backend: linear layers with weights of any format, norms and gates."""

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeGuard, Unpack

import torch
from torch import Tensor
from torch.nn.functional import linear

from genwright.kernels.cuda import packed_linear, planes_linear, skinny_linear, wgmma_linear
from genwright.kernels.cuda.fused_linear import CHUNK, MAX_TOKENS, Operand, operand, product
from genwright.kernels.cuda.tilings import skinny_tiling, tiling, wgmma_team_rows
from genwright.kernels.triton.bit_planes import planes_matmul, unpack_planes
from genwright.kernels.triton.elementwise import rms_norm, silu_mul, take_rows
from genwright.kernels.triton.fp8_inputs import fp8_linear, quantize_gated, quantize_inputs, quantize_norm, serves
from genwright.kernels.triton.matmul import packed_matmul
from genwright.kernels.triton.unpack import unpack
from genwright.quant.bit_planes import BitPlanes
from genwright.quant.fp8 import BLOCK, Fp8Blocks
from genwright.quant.mixed import Mixed
from genwright.quant.packed import Packed, Weight
from genwright.quant.table import PackedTable
from genwright.quant.tiles import Table
from genwright.text.ops.protocol import Fused, Weights
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.ops.unpack_ahead import UnpackAhead

MAX_UNPACKING_ROWS = 128  # of a product that unpacks weights in its kernel; for more it pays to unpack them first
MAX_UNPACKED = 1 << 26  # elements that are unpacked at a time of a weight outside of the layers, such as the head


class TritonProducts(TorchOps):
    """Steps of few tokens use kernels that read each weight once, in any format; larger ones use cuBLAS."""

    def __init__(
        self,
        device: torch.device,
        deterministic: bool = False,
        group: torch.distributed.ProcessGroup | None = None,
        fp8_inputs: bool = False,
    ) -> None:
        super().__init__(deterministic, group)
        self.fp8_inputs = fp8_inputs
        self._pdl = torch.cuda.get_device_capability(device) >= (9, 0)
        self._unpack_ahead: UnpackAhead | None = None
        self._skinny_scratch: dict[int, Tensor] = {}
        self._wgmma_scratch: Tensor | None = None
        self._packed_scratch: dict[packed_linear.PackedTiling, Tensor] = {}

    def unpack_ahead(self, blocks: Sequence[Weights], device: torch.device) -> None:
        """Dequantize weights of these blocks, which must stay in the device's memory, before cuBLAS needs them."""
        self._unpack_ahead = self._unpack_ahead or UnpackAhead(device)
        self._unpack_ahead.add(blocks)

    def look_up(self, rows: Tensor, table: Tensor | Table | PackedTable) -> Tensor:
        if isinstance(table, Tensor):
            return take_rows(rows, table, pdl=self._pdl)
        if not isinstance(table, PackedTable):
            return super().look_up(rows, table)
        if isinstance(table.matrix, BitPlanes):
            return unpack_planes(table.matrix, table.dtype, rows)
        return unpack(table.matrix[rows], table.dtype)

    def product(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, Mixed):
            parts = zip(weight.parts, weight.split(bias), strict=True)
            return torch.cat([self.product(x, part, own) for part, own in parts], dim=1)
        if self.deterministic:
            return _unpacking_product(x, weight, bias, deterministic=True)
        y = self.fused_linear(x, weight, bias=bias)
        if y is not None:
            return y
        if self._rounds_inputs(weight, x):
            return fp8_linear(quantize_inputs(x, pdl=self._pdl), weight, len(x), x.dtype, bias)
        if isinstance(weight, Packed) and len(x) <= MAX_UNPACKING_ROWS:
            return _unpacking_product(x, weight, bias)
        if (
            isinstance(weight, Packed)
            and bias is None
            and prod(weight.shape) > MAX_UNPACKED
            and not self._stays(weight)
        ):
            return _product_in_pieces(x, weight)
        return self._cublas(weight, x.dtype, lambda matrix: linear(x, matrix, bias))

    def _cublas(self, weight: Weight, dtype: torch.dtype, product: Callable[[Tensor], Tensor]) -> Tensor:
        """cuBLAS's product of the weight, or of what it is dequantized to."""
        if isinstance(weight, Tensor):
            return product(weight)
        if self._unpack_ahead is None or isinstance(weight, BitPlanes):
            return product(_unpacked(weight, dtype))
        return self._unpack_ahead.multiply(weight, dtype, product)

    def _stays(self, weight: Packed) -> bool:
        """Whether it is a weight of a layer that stays in the device's memory."""
        return self._unpack_ahead is not None and weight in self._unpack_ahead

    def _rounds_inputs(self, weight: Weight, x: Tensor) -> TypeGuard[Fp8Blocks]:
        return self.fp8_inputs and not self.deterministic and serves(x, weight)

    def norm_product(self, x: Tensor, weights: Weights, norm: str, name: str, eps: float) -> Tensor:
        weight = weights[name]
        if not self._rounds_inputs(weight, x):
            return super().norm_product(x, weights, norm, name, eps)
        inputs = quantize_norm(x, weights[norm], eps, pdl=self._pdl)
        return fp8_linear(inputs, weight, len(x), x.dtype, weights.get(f"{name}.bias"))

    def add_gated_product(
        self, residual: Tensor, gate_up: Tensor, weights: Weights, activation: str, post_norm: str, eps: float
    ) -> Tensor:
        weight = weights["down"]
        if activation != "silu" or post_norm or not self._rounds_inputs(weight, gate_up):
            return super().add_gated_product(residual, gate_up, weights, activation, post_norm, eps)
        bias = weights.get("down.bias") if self.rank == 0 else None
        inputs = quantize_gated(gate_up, pdl=self._pdl)
        y = fp8_linear(inputs, weight, len(gate_up), gate_up.dtype, bias)
        return self.all_reduce(residual.add_(y) if self.rank == 0 else y)  # the sum must contain the residual once

    def fused_linear(
        self, x: Tensor, weight: Weight, bias: Tensor | None = None, **fused: Unpack[Fused]
    ) -> Tensor | None:
        if self.deterministic:
            return None
        if isinstance(weight, Mixed):
            return self._fused_parts(x, weight, bias, **fused)
        if isinstance(weight, BitPlanes):
            if not planes_linear.serves(x, weight):
                return None
            return planes_linear.planes_product(_aligned(x), weight, bias=bias, dependent=self._pdl, **fused)
        matrix = operand(weight) if len(x) <= wgmma_linear.MAX_WGMMA_TOKENS else None
        if matrix is None:
            return None
        if (packed := packed_linear.packed_tiling(matrix, x)) is not None:
            return self._packed_linear(_aligned(x), matrix, packed, bias, **fused)
        if (team_rows := wgmma_team_rows(matrix, x)) is not None:
            return self._wgmma_linear(_aligned(x), matrix, team_rows, bias, **fused)
        if (skinny := skinny_tiling(matrix, x)) is not None:
            return self._skinny_linear(_aligned(x), matrix, skinny, bias, **fused)
        if len(x) <= MAX_TOKENS and (tiles := tiling(matrix, x, fused.get("gate", False))) is not None:
            return product(_aligned(x), matrix, tiles, bias=bias, dependent=self._pdl, **fused)
        return None

    def _packed_linear(
        self, x: Tensor, matrix: Operand, tiles: packed_linear.PackedTiling, bias: Tensor | None, **fused: Unpack[Fused]
    ) -> Tensor:
        """`fused_linear` with 2 to 16 tokens and packed weights."""
        if "norm" in fused and not packed_linear.fuses_norm(tiles, x):
            x = rms_norm(x, fused.pop("norm"), fused.pop("eps"), pdl=self._pdl)
        if tiles not in self._packed_scratch:
            self._packed_scratch[tiles] = packed_linear.new_scratch(tiles, x.device)
        scratch = self._packed_scratch[tiles]
        return packed_linear.packed_linear(x, matrix, tiles, scratch, bias=bias, dependent=self._pdl, **fused)

    def _skinny_linear(
        self, x: Tensor, matrix: Operand, tiles: skinny_linear.SkinnyTiling, bias: Tensor | None, **fused: Unpack[Fused]
    ) -> Tensor:
        """`fused_linear` with up to 32 tokens; the norm takes a launch of its own."""
        if "norm" in fused:
            x = rms_norm(x, fused["norm"], fused["eps"], pdl=self._pdl)
        n_tiles = skinny_linear.n_tiles(len(x))
        if n_tiles not in self._skinny_scratch:
            self._skinny_scratch[n_tiles] = skinny_linear.new_scratch(len(x), x.device)
        return skinny_linear.skinny_linear(
            x, matrix, tiles, self._skinny_scratch[n_tiles], bias=bias, residual=fused.get("residual"),
            gate=fused.get("gate", False), dependent=self._pdl,
        )  # fmt: skip

    def _wgmma_linear(
        self, x: Tensor, matrix: Operand, team_rows: int, bias: Tensor | None, **fused: Unpack[Fused]
    ) -> Tensor:
        """`fused_linear` with 17 to 64 tokens and packed weights; the norm takes a launch of its own."""
        if "norm" in fused:
            x = rms_norm(x, fused["norm"], fused["eps"], pdl=self._pdl)
        if self._wgmma_scratch is None:
            self._wgmma_scratch = wgmma_linear.new_scratch(x.device)
        residual = fused.get("residual")
        return wgmma_linear.wgmma_linear(
            x, matrix, self._wgmma_scratch, team_rows=team_rows, bias=bias, gate=fused.get("gate", False),
            residual=None if residual is None else _aligned(residual), dependent=self._pdl,
        )  # fmt: skip

    def _fused_parts(self, x: Tensor, weight: Mixed, bias: Tensor | None, **fused: Unpack[Fused]) -> Tensor | None:
        """The outputs of each part side by side; a gate or a residual would need parts of its own."""
        if fused.get("gate") or fused.get("residual") is not None:
            return None
        x, y = _aligned(x), x.new_empty(len(x), weight.shape[0])
        columns = y.split([part.shape[0] for part in weight.parts], dim=1)
        for part, own, out in zip(weight.parts, weight.split(bias), columns, strict=True):
            if isinstance(part, BitPlanes) and planes_linear.serves(x, part):
                planes_linear.planes_product(x, part, bias=own, dependent=self._pdl, out=out, **fused)
            elif (outputs := self.fused_linear(x, part, own, **fused)) is not None:
                out.copy_(outputs)
            else:
                return None
        return y

    def add_product(self, residual: Tensor | None, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        if residual is not None and bias is None and self._uses_cublas(x, weight):
            # Out of place, PyTorch would copy the residual.
            return self._cublas(weight, x.dtype, lambda matrix: residual.addmm_(x, matrix.t()))
        return super().add_product(residual, x, weight, bias)

    def _uses_cublas(self, x: Tensor, weight: Weight) -> bool:
        """Whether `product` is cuBLAS's, of the weight or of what it is unpacked to, where `fused_linear` is None."""
        if self.deterministic or isinstance(weight, Mixed):
            return False
        return isinstance(weight, Tensor) or (len(x) > MAX_UNPACKING_ROWS and not self._rounds_inputs(weight, x))

    def norm(self, x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
        return rms_norm(x, weights[name], eps, pdl=self._pdl)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        return silu_mul(gate_up, pdl=self._pdl) if activation == "silu" else super().gate(gate_up, activation)


def _product_in_pieces(x: Tensor, weight: Packed) -> Tensor:
    """cuBLAS's product, with some rows of the weight dequantized at a time."""
    rows, columns = weight.shape
    y, most = x.new_empty(len(x), rows), max(MAX_UNPACKED // columns // BLOCK, 1) * BLOCK
    for first in range(0, rows, most):
        count = min(most, rows - first)
        matrix = _unpacked(weight.narrow(0, first, count), x.dtype)
        torch.mm(x, matrix.t(), out=y[:, first : first + count])
    return y


def _unpacked(weight: Packed, dtype: torch.dtype) -> Tensor:
    return unpack_planes(weight, dtype) if isinstance(weight, BitPlanes) else unpack(weight, dtype)


def _unpacking_product(x: Tensor, weight: Weight, bias: Tensor | None, deterministic: bool = False) -> Tensor:
    """A product whose kernel unpacks the weight."""
    if isinstance(weight, BitPlanes):
        return planes_matmul(x, weight, bias, deterministic)
    return packed_matmul(x, weight, bias, deterministic)


def _aligned(x: Tensor) -> Tensor:
    """A tensor as the CUDA kernels read it, in whole chunks."""
    if x.is_contiguous() and x.data_ptr() % CHUNK == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)

"""GPTQ (Frantar et al., 2022): round columns one by one, and correct the columns not yet rounded for each error.

The model is given as hidden states and blocks; only one block's weights are in memory at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.quant import fp8, int8
from genwright.quant.formats import Format
from genwright.quant.int4 import ZERO, Int4, nearest, pack
from genwright.quant.packed import Packed

DAMPING = 0.1  # share of the Hessian's mean diagonal that is added to it, for inputs that the calibration text lacks
BLOCK = 128  # columns whose errors are applied to the remaining columns at once
PIECE = 1 << 21  # weights that are rounded together; temporary memory is several times as large
Observe = Callable[[str, Tensor], None]  # called with a name and the inputs [tokens, inputs] of its matrices


@dataclass(frozen=True)
class Settings:
    """`damping` times the Hessian's mean diagonal is added to it; errors are applied after `block` columns at once."""

    damping: float = DAMPING
    block: int = BLOCK


DEFAULT = Settings()


class Block(Protocol):
    """One layer: its matrices [outputs, inputs] that are to be quantized, and its forward pass."""

    matrices: dict[str, dict[str, Tensor]]  # by observed name, then by matrix name: several may share their inputs

    def run(self, x: Tensor, observe: Observe | None = None) -> Tensor:
        """The layer's output for x [tokens, dim]; `observe`, if given, is called with the inputs of the matrices."""
        ...


def calibrate(
    hidden: list[Tensor], blocks: Iterable[Block], form: Format, settings: Settings = DEFAULT
) -> Iterator[dict[str, Packed]]:
    """Quantize each block's matrices, using the inputs that the already quantized blocks before it produce."""
    for block in blocks:
        packed = _pack_block(block, hidden, form, settings)
        hidden = [block.run(x) for x in hidden]
        yield packed


def _pack_block(block: Block, hidden: list[Tensor], form: Format, settings: Settings) -> dict[str, Packed]:
    hessians: dict[str, Tensor] = {}

    def observe(name: str, x: Tensor) -> None:
        x = x.float()
        hessians[name] = hessians[name].addmm_(x.T, x) if name in hessians else x.T @ x

    for x in hidden:
        block.run(x, observe)
    packed: dict[str, Packed] = {}
    for observed, matrices in block.matrices.items():
        inverse = Inverse.of(hessians.pop(observed), settings.damping) if observed in hessians else None
        for name, matrix in matrices.items():
            pieces = []
            for rows in matrix.split(max(1, PIECE // matrix.shape[1] // fp8.BLOCK) * fp8.BLOCK):
                pieces.append(round_columns(rows, inverse, form, settings.block))
                rows.copy_(pieces[-1].dequantize(rows.dtype))
            packed[name] = type(pieces[0]).cat(pieces)
    return packed


@dataclass(frozen=True)
class Inverse:
    """The order in which columns are rounded, and the upper Cholesky factor of the inverse Hessian in that order.

    Columns with large inputs come first, while there are other columns left to correct their errors.
    """

    order: Tensor
    upper: Tensor

    @classmethod
    def of(cls, hessian: Tensor, damping: float = DAMPING) -> "Inverse":
        """From the Hessian X^T X, which is damped (the paper's step 3)."""
        diagonal = hessian.diagonal().clone()
        mean, order = diagonal.mean(), diagonal.argsort(descending=True, stable=True)
        hessian.diagonal().add_(torch.where(diagonal == 0, mean.clamp(min=1.0), damping * mean))
        # L L^T = H in reversed order, so that L^-1, reversed again, is the upper factor of H^-1. Each line frees the
        # matrix of the line before, because it is nearly as large as all weights of a layer.
        hessian = hessian[order.flip(0)[:, None], order.flip(0)]
        try:
            hessian = torch.linalg.cholesky(hessian)
        except torch.linalg.LinAlgError as error:
            raise UserError(
                "GPTQ failed because a layer's inputs on the calibration text are NaN or too similar; try another "
                "calibration text or --method rtn."
            ) from error
        inverse = torch.eye(len(hessian), device=hessian.device).T  # column-major, so that LAPACK solves in place
        torch.linalg.solve_triangular(hessian, inverse, upper=False, out=inverse)
        del hessian
        return cls(order, inverse.flip(0, 1))


def round_columns(weight: Tensor, inverse: Inverse | None, form: Format, block: int = BLOCK) -> Packed:
    """Quantize [rows, columns] so that tr((w - q) H (w - q)^T) is small; without H, round to nearest.

    Scales are those of rounding to nearest, so the stored format does not depend on the order of the columns.
    """
    packed = form.quantize(weight)
    if inverse is None:
        return packed
    order, upper = inverse.order, inverse.upper
    step, low, width = _grid(packed)
    groups = (order // width).tolist()
    w = weight.float().T[order]  # [columns, rows], so that a column is contiguous; overwritten by the codes q
    for first in range(0, len(w), block):
        last = min(first + block, len(w))
        errors = torch.empty_like(w[first:last])
        for i in range(first, last):
            column, at = w[i], groups[i]
            q = _code(packed, column, step[at], low[at])
            error = torch.sub(column, torch.addcmul(low[at], q, step[at]), out=errors[i - first]).div_(upper[i, i])
            w[i + 1 : last].addr_(upper[i, i + 1 : last], error, alpha=-1)
            column.copy_(q)
        w[last:].addmm_(upper[first:last, last:].T, errors, alpha=-1)
    return _with_codes(packed, w[order.argsort()].T)


def _grid(packed: Packed) -> tuple[Tensor, Tensor, int]:
    """step and low (float32 [groups, rows], weight = code * step + low), and the number of columns per group."""
    if isinstance(packed, fp8.Fp8Blocks):
        step = packed.scales.repeat_interleave(packed.height, dim=0)[: packed.shape[0]].T.contiguous()
        return step, torch.zeros_like(step), packed.width
    assert isinstance(packed, Int4 | int8.Int8)
    step = packed.scales.float().T.contiguous()
    if isinstance(packed, int8.Int8):
        return step, torch.zeros_like(step), packed.group
    low = step * -ZERO if packed.minimums is None else packed.minimums.float().T.contiguous()
    return step, low, packed.group


def _code(packed: Packed, w: Tensor, step: Tensor, low: Tensor) -> Tensor:
    if isinstance(packed, Int4):
        return nearest(w, step, low)
    scaled = w / torch.where(step == 0, 1, step)
    if isinstance(packed, int8.Int8):
        return scaled.round_().clamp_(-int8.LARGEST, int8.LARGEST)
    return scaled.clamp_(-fp8.LARGEST, fp8.LARGEST).to(fp8.VALUES).float()


def _with_codes(packed: Packed, q: Tensor) -> Packed:
    if isinstance(packed, Int4):
        return replace(packed, words=pack(q))
    assert isinstance(packed, int8.Int8 | fp8.Fp8Blocks)
    return replace(packed, values=q.to(packed.values.dtype))

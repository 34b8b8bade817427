"""Products of few tokens: a small C++ kernel, compiled for this processor when a format of weights first needs it.

Where there is no compiler, or it fails, everything goes through torch as before.
"""

import ctypes
from collections.abc import MutableMapping
from functools import cache
from typing import NamedTuple

import torch
from torch.nn.functional import linear
from torch.utils.weak import WeakIdKeyDictionary

from genwright.kernels.cpu.amx import cpu_flags, has_bf16
from genwright.kernels.cpu.build import library
from genwright.quant.fp8 import VALUES, Fp8Blocks
from genwright.quant.int4 import Int4
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed, Weight

# By the type of what is stored; packed weights have one of their own each.
FORMATS = {torch.float32: "Float32", torch.bfloat16: "Bf16", torch.int8: "Int8", torch.int32: "Int4", VALUES: "Fp8"}
FP8_STEP = 64  # columns that the kernel reads at a time: they share a scale
MOST_TOKENS = 48  # with more, MKL's products are faster (Ice Lake, 2 cores)
MOST_TOKENS_BF16 = 8  # where the processor multiplies bf16 itself
PIECE = 512  # rows that are widened at a time for more tokens: the last-level cache holds them


class Matrix(ctypes.Structure):
    """`Matrix` of weights.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "scales", "minimums")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "row_bytes", "group", "height", "half")),
    )


class Epilogue(ctypes.Structure):
    """`Epilogue` of fused_linear.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm", "bias", "residual")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("gate", "narrow")),
    )


class Operand(NamedTuple):
    """A weight that there is a kernel for, which reads it where it lies: it has to outlive this."""

    matrix: Matrix
    library: ctypes.CDLL

    def product(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
        residual: torch.Tensor | None = None,
        gate: bool = False,
    ) -> torch.Tensor:
        """residual + W norm(x) + bias, or with `gate` silu(y1) * y2 of its halves, summed in float32.

        A row's bits do not depend on the other rows. x [tokens, inputs], norm [inputs], bias [outputs], residual as y
        """
        x = self._check(x).contiguous()
        y = x.new_empty(len(x), self.matrix.outputs // (2 if gate else 1))
        others = [None if tensor is None else tensor.to(x.dtype).contiguous() for tensor in (norm, bias, residual)]
        starts = (None if tensor is None else tensor.data_ptr() for tensor in others)
        around = Epilogue(*starts, eps, gate, x.dtype == torch.bfloat16)
        self.library.product(self.matrix, around, x.data_ptr(), y.data_ptr(), len(x), torch.get_num_threads())
        return y

    def by_pieces(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The same for many tokens, by torch's products with some widened rows of the weight at a time."""
        wide, outputs = self._check(x).float().contiguous(), self.matrix.outputs
        columns = self.library.row_floats(self.matrix)
        piece, ordered = wide.new_empty(min(PIECE, outputs), columns), wide.new_empty(len(x), columns)
        self.library.reorder(self.matrix, wide.data_ptr(), len(x), ordered.data_ptr())
        ordered = ordered.to(x.dtype if has_bf16() else torch.float32)
        y = ordered.new_empty(len(x), outputs)
        for first in range(0, outputs, PIECE):
            end = min(first + PIECE, outputs)
            self.library.widen(self.matrix, first, end, piece.data_ptr(), torch.get_num_threads())
            torch.mm(ordered, piece[: end - first].to(ordered.dtype).T, out=y[:, first:end])
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    def _check(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != self.matrix.inputs:
            raise ValueError(f"rows of {x.shape[1]} do not fit a weight of {self.matrix.inputs} columns")
        return x


def few_tokens_linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias on any device, for inference: by the kernel where that is faster, else by torch."""
    few = few_tokens_operand(x, weight, bias)
    if few is not None:
        return few.product(x, bias)
    if isinstance(weight, torch.Tensor) and (x.dtype != torch.bfloat16 or has_bf16()):
        return linear(x, weight, bias)
    found = operand(x, weight, bias)
    if found is None:
        return weight.linear(x, bias) if isinstance(weight, Packed) else linear(x, weight, bias)
    return found.by_pieces(x, bias)


def few_tokens_operand(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> Operand | None:
    """None where there is no kernel, or so many tokens that torch is faster."""
    most = MOST_TOKENS_BF16 if x.dtype == torch.bfloat16 and has_bf16() else MOST_TOKENS
    return operand(x, weight, bias) if len(x) <= most else None


def operand(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> Operand | None:
    """None where there is no kernel for this: it takes matrices on a CPU, packed or of x's type."""
    if not x.is_cpu or x.dtype not in (torch.float32, torch.bfloat16) or x.dim() != 2:
        return None
    if isinstance(weight, torch.Tensor) and not (weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype)):
        return None
    found = _operands.get(weight)
    if found is None or (isinstance(weight, torch.Tensor) and found.matrix.values != weight.data_ptr()):
        found = _operands[weight] = _operand(weight)
    return found


# By weight, for as long as it lives: making one takes longer than some products.
_operands: MutableMapping[Weight, Operand | None] = WeakIdKeyDictionary()


def _operand(weight: Weight) -> Operand | None:
    scales: torch.Tensor | None = None
    minimums: torch.Tensor | None = None
    height, least = 1, 8
    match weight:
        case torch.Tensor():
            values, inputs = weight, weight.shape[-1]
            group = inputs
        case Int4(values, scales, minimums, inputs, group):
            pass
        case Int8(values, scales, group):
            inputs = values.shape[-1]
        case Fp8Blocks(values, scales, height, group):
            inputs, least = values.shape[-1], FP8_STEP
        case _:
            return None
    if not _plain(values):
        return None
    if scales is not None and not (_plain(scales) and scales.dtype in (torch.float32, torch.float16)):
        return None
    if scales is not None and minimums is not None and not (_plain(minimums) and minimums.dtype == scales.dtype):
        return None
    if group < inputs and group % least:
        return None
    form = FORMATS[values.dtype]
    kind = "MINIMUMS" if minimums is not None else "GROUPS" if group < inputs or form == "Int4" else "ROWS"
    pairs = form == "Bf16" and "avx512_bf16" in cpu_flags()
    library = (kernel("Bf16Pairs") if pairs else None) or kernel(form, kind)  # a compiler may not know of pairs
    if library is None:
        return None
    starts = (None if tensor is None else tensor.data_ptr() for tensor in (values, scales, minimums))
    half = scales is not None and scales.dtype == torch.float16
    sizes = len(values), inputs, values.shape[1] * values.itemsize, max(group, 1), height, half
    return Operand(Matrix(*starts, *sizes), library)


def _plain(matrix: torch.Tensor) -> bool:
    return matrix.is_cpu and matrix.dim() == 2 and matrix.is_contiguous()


@cache
def kernel(form: str = "Float32", scales: str = "ROWS") -> ctypes.CDLL | None:
    """fused_linear.cpp for a format and a kind of scales, as weights.h names them, if it can be had."""
    found = library("fused_linear", FORMAT=form, SCALES=scales)
    if found is not None:
        pointer, integer, matrix = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(Matrix)
        found.product.argtypes = [matrix, ctypes.POINTER(Epilogue), pointer, pointer, integer, ctypes.c_int]
        found.reorder.argtypes = [matrix, pointer, integer, pointer]
        found.widen.argtypes = [matrix, integer, integer, pointer, ctypes.c_int]
        found.row_floats.argtypes, found.row_floats.restype = [matrix], integer
    return found

"""Fused linear layers of few tokens: a C++ kernel, compiled for this processor when a weight format is first used.

Without a working compiler, all products use torch.
"""

import ctypes
from collections.abc import MutableMapping
from functools import cache
from typing import TypedDict, Unpack

import torch
from torch.nn.functional import linear
from torch.utils.weak import WeakIdKeyDictionary

from genwright.kernels.cpu.amx import cpu_flags, has_bf16
from genwright.kernels.cpu.build import load_library
from genwright.kernels.cpu.calls import Recording, address, runner
from genwright.kernels.cpu.operand import Arguments, MixedOperand, Operand, product_fields
from genwright.kernels.cpu.tile_linear import tile_operand
from genwright.quant.fp8 import VALUES, Fp8Blocks
from genwright.quant.int4 import Int4
from genwright.quant.int8 import Int8
from genwright.quant.mixed import Mixed
from genwright.quant.packed import Packed, Weight
from genwright.quant.tiles import Tiles

# The C++ format of each stored dtype; every packed format has its own dtype.
FORMATS = {torch.float32: "Float32", torch.bfloat16: "Bf16", torch.int8: "Int8", torch.int32: "Int4", VALUES: "Fp8"}
FP8_STEP = 64  # columns per step of the kernel, which must share a scale
MAX_TOKENS = 48  # with more, MKL is faster (measured on two cores of an Ice Lake)
MAX_TOKENS_BF16 = 8  # the same for bf16 on processors that multiply bf16 in hardware
PIECE = 512  # rows that are dequantized at a time for many tokens; they fit the last-level cache


class Matrix(ctypes.Structure):
    """`Matrix` of weights.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "scales", "minimums")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "row_bytes", "group", "height", "half")),
    )


class Linear(ctypes.Structure):
    """The arguments of a call."""

    _fields_ = product_fields(Matrix)


class RowOperand(Operand):
    """A weight whose rows lie one after the other: floats, fp8, and int4 and int8 that are not in tiles."""

    def __init__(self, matrix: Matrix, library: ctypes.CDLL):
        self.outputs, self.inputs = matrix.outputs, matrix.inputs
        self.matrix, self.library = matrix, library
        self._function = address(library, "linear_part")

    def run(self, arguments: Arguments) -> None:
        outputs = self.outputs // (2 if arguments.gate else 1)
        arguments.call(self._function, Linear, self.matrix, outputs)

    def many_tokens(self, x: torch.Tensor, bias: torch.Tensor | None = None, *, exact: bool = True) -> torch.Tensor:
        """Dequantize some rows of the weight at a time, and multiply by torch."""
        x_float32, outputs = self.check(x).float().contiguous(), self.outputs
        columns = self.library.row_floats(self.matrix)
        ordered = x_float32.new_empty(len(x), columns)
        self.library.reorder(self.matrix, x_float32.data_ptr(), len(x), ordered.data_ptr())
        ordered = ordered.to(x.dtype if has_bf16() else torch.float32)
        piece, bf16 = ordered.new_empty(min(PIECE, outputs), columns), ordered.dtype == torch.bfloat16
        y = ordered.new_empty(len(x), outputs)
        for first in range(0, outputs, PIECE):
            end = min(first + PIECE, outputs)
            self.library.widen(self.matrix, first, end, piece.data_ptr(), bf16, torch.get_num_threads())
            torch.mm(ordered, piece[: end - first].T, out=y[:, first:end])
        return (y if bias is None else y.add_(bias)).to(x.dtype)


class How(TypedDict, total=False):
    """How a product is computed: without rounding x, and recorded."""

    exact: bool
    recording: Recording | None


def few_tokens_linear(
    x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None, **how: Unpack[How]
) -> torch.Tensor:
    """x weight^T + bias on any device, for inference; by the kernel if that is faster, otherwise by torch."""
    kernel_operand = few_tokens_operand(x, weight, bias)
    if kernel_operand is not None:
        return kernel_operand.product(x, bias, **how)
    if isinstance(weight, torch.Tensor) and (x.dtype != torch.bfloat16 or has_bf16()):
        return linear(x, weight, bias)
    kernel_operand = operand(x, weight, bias)
    if kernel_operand is not None:
        return kernel_operand.many_tokens(x, bias, exact=how.get("exact", True))
    return weight.linear(x, bias) if isinstance(weight, Packed) else linear(x, weight, bias)


def few_tokens_operand(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> Operand | None:
    """None if there is no kernel for these inputs, or so many tokens that torch is faster."""
    found = operand(x, weight, bias)
    limit = MAX_TOKENS_BF16 if x.dtype == torch.bfloat16 and has_bf16() else MAX_TOKENS
    return found if found is None or found.any_count or len(x) <= limit else None


def operand(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> Operand | None:
    """None if there is no kernel for these inputs: it takes matrices on a CPU, packed or of x's dtype."""
    if not x.is_cpu or x.dtype not in (torch.float32, torch.bfloat16) or x.dim() != 2:
        return None
    if isinstance(weight, torch.Tensor) and not (weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype)):
        return None
    found = _operands.get(weight)
    moved = (
        isinstance(weight, torch.Tensor) and isinstance(found, RowOperand) and found.matrix.values != weight.data_ptr()
    )
    if found is None or moved:
        found = _operands[weight] = _operand(weight)
    return found


# Cached by weight for as long as the weight lives, because making an operand takes longer than some products.
_operands: MutableMapping[Weight, Operand | None] = WeakIdKeyDictionary()


def _operand(weight: Weight) -> Operand | None:
    if isinstance(weight, Tiles):
        return tile_operand(weight)
    if isinstance(weight, Mixed):
        parts = [_operand(part) for part in weight.parts]
        return None if None in parts else MixedOperand([part for part in parts if part is not None])
    return _row_operand(weight)


def _row_operand(weight: Weight) -> RowOperand | None:
    scales: torch.Tensor | None = None
    minimums: torch.Tensor | None = None
    height, unit = 1, 8
    match weight:
        case torch.Tensor():
            values, inputs = weight, weight.shape[-1]
            group = inputs
        case Int4(values, scales, minimums, inputs, group):
            pass
        case Int8(values, scales, group):
            inputs = values.shape[-1]
        case Fp8Blocks(values, scales, height, group):
            inputs, unit = values.shape[-1], FP8_STEP
        case _:
            return None
    stored = [tensor for tensor in (values, scales, minimums) if tensor is not None]
    if not all(tensor.is_cpu and tensor.dim() == 2 and tensor.is_contiguous() for tensor in stored):
        return None
    scale_types = {tensor.dtype for tensor in stored[1:]}
    if len(scale_types) > 1 or not scale_types <= {torch.float32, torch.float16}:
        return None
    if group < inputs and group % unit:
        return None
    form = FORMATS[values.dtype]
    kind = "MINIMUMS" if minimums is not None else "GROUPS" if group < inputs or form == "Int4" else "ROWS"
    pairs = form == "Bf16" and "avx512_bf16" in cpu_flags()
    library = (kernel("Bf16Pairs") if pairs else None) or kernel(form, kind)  # an old compiler may not support pairs
    if library is None or runner() is None:
        return None
    pointers = (None if tensor is None else tensor.data_ptr() for tensor in (values, scales, minimums))
    half = scale_types == {torch.float16}
    sizes = len(values), inputs, values.shape[1] * values.itemsize, max(group, 1), height, half
    return RowOperand(Matrix(*pointers, *sizes), library)


@cache
def kernel(form: str = "Float32", scales: str = "ROWS") -> ctypes.CDLL | None:
    """fused_linear.cpp, compiled for a format and kind of scales of weights.h; None if that is not possible."""
    library = load_library("fused_linear", FORMAT=form, SCALES=scales)
    if library is not None:
        pointer, integer, matrix = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(Matrix)
        library.reorder.argtypes = [matrix, pointer, integer, pointer]
        library.widen.argtypes = [matrix, integer, integer, pointer, ctypes.c_bool, ctypes.c_int]
        library.row_floats.argtypes, library.row_floats.restype = [matrix], integer
    return library

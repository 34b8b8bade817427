"""Fused linear layers of few tokens: a C++ kernel, compiled for this processor when a weight format is first used.

Without a working compiler, all products use torch.
"""

import ctypes
from collections.abc import MutableMapping
from functools import cache
from typing import NamedTuple, TypedDict, Unpack

import torch
from torch.nn.functional import linear, pad
from torch.utils.weak import WeakIdKeyDictionary

from genwright.kernels.cpu.amx import cpu_flags, has_bf16
from genwright.kernels.cpu.build import load_library
from genwright.kernels.cpu.calls import Progress, Recording, address, make_call, runner
from genwright.quant.fp8 import VALUES, Fp8Blocks
from genwright.quant.int4 import ZERO, Int4
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed, Weight

# The C++ format of each stored dtype; every packed format has its own dtype.
FORMATS = {torch.float32: "Float32", torch.bfloat16: "Bf16", torch.int8: "Int8", torch.int32: "Int4", VALUES: "Fp8"}
CODES = {"Int8": "Int8Codes", "Int4": "Int4Codes"}  # of codes.h, by format
UNIT = 32  # columns of x that are rounded with one scale, and at least as many of the weight
FP8_STEP = 64  # columns per step of the kernel, which must share a scale
MAX_TOKENS = 48  # with more, MKL is faster (measured on two cores of an Ice Lake)
MAX_TOKENS_BF16 = 8  # the same for bf16 on processors that multiply bf16 in hardware
PIECE = 512  # rows that are dequantized at a time for many tokens; they fit the last-level cache


class Matrix(ctypes.Structure):
    """`Matrix` of weights.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "scales", "minimums")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "row_bytes", "group", "height", "half", "zero")),
    )


class Epilogue(ctypes.Structure):
    """`Epilogue` of linear.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm", "bias", "residual")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("gate", "bf16")),
    )


class Linear(ctypes.Structure):
    """`Linear` of linear.h: the arguments of a call."""

    _fields_ = (
        ("progress", Progress),
        ("w", Matrix),
        ("epilogue", Epilogue),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
    )


class Operand(NamedTuple):
    """A weight and the kernels that read it in place; the weight must outlive this."""

    matrix: Matrix
    library: ctypes.CDLL
    exact: int  # address of the function that multiplies floats
    rounded: int | None  # of the one that rounds x to 8 bits and multiplies integers, if there is one for this weight

    def product(
        self,
        x: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
        residual: torch.Tensor | None = None,
        gate: bool = False,
        exact: bool = True,
        recording: Recording | None = None,
    ) -> torch.Tensor:
        """residual + W norm(x) + bias, or with `gate` silu(y1) * y2 of its halves, summed in float32.

        x [tokens, inputs], norm [inputs], bias [outputs], residual like y. A row's bits do not depend on other rows.
        Unless `exact`, x may be rounded to 8 bits, with a scale for every 32 columns.
        """
        x = self._check(x).contiguous()
        y = x.new_empty(len(x), self.matrix.outputs // (2 if gate else 1))
        others = [None if tensor is None else tensor.to(x.dtype).contiguous() for tensor in (norm, bias, residual)]
        pointers = (None if tensor is None else tensor.data_ptr() for tensor in others)
        epilogue = Epilogue(*pointers, eps, gate, x.dtype == torch.bfloat16)
        arguments = Linear(Progress(), self.matrix, epilogue, x.data_ptr(), y.data_ptr(), len(x))
        function = self.exact if exact or self.rounded is None else self.rounded
        make_call(function, arguments, y.shape[1], recording, x, y, *others)
        return y

    def by_pieces(self, x: torch.Tensor, bias: torch.Tensor | None = None, *, exact: bool = True) -> torch.Tensor:
        """W x + bias for many tokens: dequantize some rows of the weight at a time, and multiply by torch."""
        x_float32, outputs = self._check(x).float().contiguous(), self.matrix.outputs
        if not exact and self.rounded is not None:
            x_float32 = round_inputs(x_float32)  # so that a token's values depend little on the number of tokens
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

    def _check(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != self.matrix.inputs:
            raise ValueError(f"x has {x.shape[1]} columns, but the weight has {self.matrix.inputs}")
        return x


def round_inputs(x: torch.Tensor) -> torch.Tensor:
    """The values to which integer_linear.cpp rounds x [tokens, inputs]: 8 bits, with a scale for every UNIT columns."""
    groups = pad(x, (0, -x.shape[1] % UNIT)).unflatten(1, (-1, UNIT))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    codes = (groups * torch.where(largest > 0, 127 / largest, 0)).round_()
    return codes.mul_(largest / 127).flatten(1)[:, : x.shape[1]].contiguous()


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
        return kernel_operand.by_pieces(x, bias, exact=how.get("exact", True))
    return weight.linear(x, bias) if isinstance(weight, Packed) else linear(x, weight, bias)


def few_tokens_operand(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> Operand | None:
    """None if there is no kernel for these inputs, or so many tokens that torch is faster."""
    limit = MAX_TOKENS_BF16 if x.dtype == torch.bfloat16 and has_bf16() else MAX_TOKENS
    return operand(x, weight, bias) if len(x) <= limit else None


def operand(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> Operand | None:
    """None if there is no kernel for these inputs: it takes matrices on a CPU, packed or of x's dtype."""
    if not x.is_cpu or x.dtype not in (torch.float32, torch.bfloat16) or x.dim() != 2:
        return None
    if isinstance(weight, torch.Tensor) and not (weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype)):
        return None
    found = _operands.get(weight)
    if found is None or (isinstance(weight, torch.Tensor) and found.matrix.values != weight.data_ptr()):
        found = _operands[weight] = _operand(weight)
    return found


# Cached by weight for as long as the weight lives, because making an operand takes longer than some products.
_operands: MutableMapping[Weight, Operand | None] = WeakIdKeyDictionary()


def _operand(weight: Weight) -> Operand | None:
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
    zero = ZERO if form == "Int4" and minimums is None else 0
    sizes = len(values), inputs, values.shape[1] * values.itemsize, max(group, 1), height, half, zero
    integer = integer_kernel(form) if form in CODES and (group % UNIT == 0 or group >= inputs) else None
    functions = address(library, "linear_part"), None if integer is None else address(integer, "linear_part")
    return Operand(Matrix(*pointers, *sizes), library, *functions)


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


@cache
def integer_kernel(form: str) -> ctypes.CDLL | None:
    """integer_linear.cpp, compiled for the codes of a format; None if that is not possible."""
    return load_library("integer_linear", CODES=CODES[form], GROUP=UNIT)

"""Operand: a weight with the C++ kernels that multiply it, and the arguments that all of those kernels share."""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from genwright.kernels.cpu.calls import Progress, Recording, make_call


class Epilogue(ctypes.Structure):
    """`Epilogue` of linear.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("norm", "bias", "residual")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("gate", "bf16")),
    )


def product_fields(matrix: type[ctypes.Structure]) -> Sequence[tuple[str, type]]:
    """The fields of `Product` of linear.h for a kind of matrix."""
    pointers = (("x", ctypes.c_void_p), ("y", ctypes.c_void_p))
    sizes = (("tokens", ctypes.c_int64), ("stride", ctypes.c_int64))
    return (("progress", Progress), ("w", matrix), ("epilogue", Epilogue), *pointers, *sizes)


@dataclass(frozen=True)
class Arguments:
    """The tensors of a product: x [tokens, inputs], y and residual [tokens, columns], norm [inputs], bias [columns]."""

    x: torch.Tensor
    y: torch.Tensor
    norm: torch.Tensor | None
    bias: torch.Tensor | None
    residual: torch.Tensor | None
    eps: float
    gate: bool
    exact: bool
    recording: Recording | None
    column: int = 0  # the first of y that is computed

    def call(
        self,
        function: int,
        kind: type[ctypes.Structure],
        matrix: ctypes.Structure,
        units: int,
        *more: torch.Tensor | None,
    ) -> None:
        """Call a kernel that has `units` of work, columns of y for most; `more` are its last arguments."""
        tensors = (self.norm, self.bias, self.residual)
        offset = self.column * self.x.itemsize
        norm, *others = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
        pointers = norm, *(None if pointer is None else pointer + offset for pointer in others)
        epilogue = Epilogue(*pointers, self.eps, self.gate, self.x.dtype == torch.bfloat16)
        places = self.x.data_ptr(), self.y.data_ptr() + offset
        last = (None if tensor is None else tensor.data_ptr() for tensor in more)
        arguments = kind(Progress(), matrix, epilogue, *places, len(self.x), self.y.shape[1], *last)
        make_call(function, arguments, units, self.recording, self.x, self.y, *tensors, *more)


class Operand(ABC):
    """A weight [outputs, inputs] that kernels read in place; the weight must outlive this."""

    outputs: int
    inputs: int
    any_count = False  # whether `product` is the fastest for any number of tokens
    rows_per_gate = 1  # each half of a gated product must have a multiple of so many rows

    @abstractmethod
    def run(self, arguments: Arguments) -> None: ...

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
        Unless `exact`, x may be rounded to 8 bits, outliers to 16, with a scale for every 32 columns.
        """
        x = self.check(x).contiguous()
        y = x.new_empty(len(x), self.outputs // (2 if gate else 1))
        tensors = (None if t is None else t.to(x.dtype).contiguous() for t in (norm, bias, residual))
        norm, bias, residual = tensors
        self.run(Arguments(x, y, norm, bias, residual, eps, gate, exact, recording))
        return y

    def many_tokens(self, x: torch.Tensor, bias: torch.Tensor | None = None, *, exact: bool = True) -> torch.Tensor:
        """W x + bias for many tokens."""
        return self.product(x, bias, exact=exact)

    def takes_gate(self) -> bool:
        """Whether `product` can apply a gate."""
        return self.outputs % (2 * self.rows_per_gate) == 0

    def check(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != self.inputs:
            raise ValueError(f"x has {x.shape[1]} columns, but the weight has {self.inputs}")
        return x


class MixedOperand(Operand):
    """Matrices of several formats, one below the other."""

    def __init__(self, parts: Sequence[Operand]):
        self.parts, self.inputs = parts, parts[0].inputs
        self.outputs = sum(part.outputs for part in parts)
        self.any_count = all(part.any_count for part in parts)

    def run(self, arguments: Arguments) -> None:
        column = arguments.column
        for part in self.parts:
            part.run(replace(arguments, column=column))
            column += part.outputs

    def takes_gate(self) -> bool:
        return False

"""The tensors that store one quantized matrix of a library, checked, and what several libraries share."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.quant.fp8 import scales_shape
from genwright.text.checkpoints.library_matrices import Floats8, Integers, LibraryMatrix, Rectangle

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class StoredParts:
    """The tensors that store one matrix, by the ends of their names."""

    shape: tuple[int, int]
    stem: str
    where: str
    library: str
    read: Callable[[str], Tensor]
    names: frozenset[str]

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self.where} has {self.stem!r} in a layout that {self.library} does not write: {what}.")

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def tensor(self, name: str, dtypes: tuple[torch.dtype, ...], *shapes: tuple[int, ...]) -> Tensor:
        """A stored tensor, of one of these dtypes and shapes; no shapes allow any."""
        if name not in self.names:
            raise self.wrong(f"there is no tensor {name!r}")
        tensor = self.read(name)
        if tensor.dtype not in dtypes or (shapes and tuple(tensor.shape) not in shapes):
            kind = f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")
            sizes = " or ".join(str(list(shape)) for shape in shapes)
            names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise self.wrong(f"{name!r} is {kind} and must be {names} {sizes}".rstrip())
        return tensor

    def group(self, groups: int) -> int:
        """Columns per group, if there are so many groups."""
        columns = self.shape[1]
        if groups < 1 or columns % groups:
            raise self.wrong(f"{groups} groups do not divide its {columns} columns")
        return columns // groups


def offsets_of(scales: Tensor, zeros: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
    """-z s of signed zero points z [rows, groups]; None if all are zero."""
    if not zeros().any():
        return None
    return lambda: zeros().float().mul_(scales).neg_()


def integers8(
    parts: StoredParts, values: Tensor, scales: Tensor, zero_point: str | None = None, bits: int = 8
) -> LibraryMatrix:
    """One integer per byte; zero points have the shape of the scales."""
    if len(scales) not in (1, parts.shape[0]):
        raise parts.wrong(f"its scales have {len(scales)} rows, not {parts.shape[0]}")
    offsets = None
    if zero_point is not None and zero_point in parts:
        zeros = parts.tensor(zero_point, (torch.int8, torch.int32, torch.int64, *FLOATS))
        if zeros.numel() != scales.numel():
            raise parts.wrong(f"it has {zeros.numel()} zero points and {scales.numel()} scales")
        offsets = offsets_of(scales, lambda: zeros.reshape(scales.shape))
    group = parts.group(scales.shape[1])

    def codes(some: Rectangle) -> Tensor:
        first, end, left, right = some
        return values[first:end, left:right]

    return Integers(parts.shape, bits, codes, (1, 1), scales, group, offsets)


def floats8(parts: StoredParts, values: Tensor, scales: Tensor) -> LibraryMatrix:
    if tuple(scales.shape) in ((1, 1), (parts.shape[0], 1)):
        return Floats8(values, scales)
    if tuple(scales.shape) == scales_shape(parts.shape):
        return Floats8(values, scales, blocks=True)
    raise parts.wrong(f"e4m3 has scales of shape {list(scales.shape)}; one per matrix, row or 128 x 128 are supported")


def signed(codes: Tensor, bits: int) -> Tensor:
    """Unsigned codes as signed ones in int8, around the middle of their range."""
    return (codes.short() - (1 << bits - 1)).to(torch.int8)


def json_of(parts: StoredParts, name: str) -> dict[str, Any]:
    try:
        value = json.loads(bytes(parts.tensor(name, (torch.uint8,)).tolist()))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise parts.wrong(f"{name!r} is not a JSON object")
    return value

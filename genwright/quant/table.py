"""PackedTable: a packed matrix of which a step looks up rows, such as an embedding."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genwright.quant.packed import Packed, Weight
from genwright.quant.tiles import Table, Tiles


@dataclass(frozen=True)
class PackedTable(Packed):
    """Rows are looked up in `dtype`."""

    matrix: Packed
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        return self.matrix.dequantize(dtype)

    def tensors(self) -> dict[str, Tensor]:
        return self.matrix.tensors()

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "PackedTable":
        return replace(self, matrix=self.matrix.with_tensors(tensors))

    def look_up(self, rows: Tensor) -> Tensor:
        return self.matrix[rows].dequantize(self.dtype)


def as_table(matrix: Packed, dtype: torch.dtype) -> Table | PackedTable:
    """A matrix as a table: one in tiles becomes what the CPU kernels look up."""
    return Table(**vars(matrix), dtype=dtype) if isinstance(matrix, Tiles) else PackedTable(matrix, dtype)


def matrix_of(table: Weight) -> Weight:
    """A table as a matrix to multiply."""
    return table.matrix if isinstance(table, PackedTable) else table

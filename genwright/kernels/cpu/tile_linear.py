"""Products of weights in tiles: a C++ kernel, compiled for this processor when a kind of tiles is first used."""

import ctypes
from collections.abc import MutableMapping
from functools import cache

import torch
from torch.utils.weak import WeakIdKeyDictionary

from genwright.kernels.cpu.amx_verdict import amx_is_faster
from genwright.kernels.cpu.build import load_library
from genwright.kernels.cpu.calls import Progress, Recording, address, make_call, runner
from genwright.kernels.cpu.operand import Arguments, Operand, product_fields
from genwright.quant import tiles
from genwright.quant.tiles import ROWS, UNIT

SCALES = {torch.float32: "FLOATS", torch.float16: "HALVES", torch.int8: "FACTORS"}

ALONE = 8  # tokens whose x every thread converts for itself, because waiting for the others would take longer
MANY = 16  # tokens from which on AMX multiplies, where it is used


class Tiles(ctypes.Structure):
    """`Tiles` of tiles.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "high", "scales", "minimums")),
        *((name, ctypes.c_void_p) for name in ("factors", "minimum_factors", "table")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "row_bytes", "shift", "zero")),
    )


class TileProduct(ctypes.Structure):
    """The arguments of a call."""

    _fields_ = (*product_fields(Tiles), ("inputs", ctypes.c_void_p))


class TileOperand(Operand):
    """A matrix in tiles; its product rounds x unless it must be exact."""

    any_count = True
    rows_per_gate = ROWS

    def __init__(self, weight: tiles.Tiles, library: ctypes.CDLL, amx: bool):
        self.outputs, self.inputs = weight.rows, weight.inputs
        self._library, self._amx = library, amx
        self.look_up = address(library, "look_up_part")
        table = None if weight.table is None else (ctypes.c_uint8 * len(weight.table))(*weight.table)
        stored = weight.codes, weight.high, weight.scales, weight.minimums, weight.factors, weight.minimum_factors
        pointers = (None if tensor is None else tensor.data_ptr() for tensor in stored)
        row_bytes = sum(tensor.nbytes for tensor in weight.tensors().values()) // max(weight.rows, 1)
        units = max(-(-min(weight.group, weight.inputs) // UNIT), 1)  # that share a scale
        sizes = weight.rows, weight.inputs, row_bytes, (units - 1).bit_length(), weight.zero
        self._table = table  # which the matrix refers to
        self.matrix = Tiles(*pointers, None if table is None else ctypes.addressof(table), *sizes)

    def run(self, arguments: Arguments) -> None:
        kind, tokens = "exact" if arguments.exact else "rounded", len(arguments.x)
        inputs: torch.Tensor | None = None
        if tokens > ALONE:
            size = self._library.input_bytes(arguments.exact) * -(-self.inputs // UNIT) * tokens
            inputs = torch.empty(size, dtype=torch.uint8)
            arguments.call(address(self._library, f"{kind}_inputs_part"), TileProduct, self.matrix, tokens, inputs)
        outputs = self.outputs // (2 if arguments.gate else 1)
        by = "amx" if self._amx and tokens >= MANY and not arguments.exact else kind
        arguments.call(address(self._library, f"{by}_part"), TileProduct, self.matrix, outputs, inputs)


class Lookup(ctypes.Structure):
    """`Lookup` of tile_linear.cpp."""

    _fields_ = (
        ("progress", Progress),
        ("w", Tiles),
        ("rows", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("bf16", ctypes.c_int64),
    )


def look_up(rows: torch.Tensor, table: tiles.Table, recording: Recording | None = None) -> torch.Tensor | None:
    """Rows of a table, by int64 numbers; None if there is no kernel for it."""
    operand = _table_operands.get(table)
    if operand is None:
        operand = tile_operand(table)
        if operand is None:
            return None
        _table_operands[table] = operand
    if table.dtype not in (torch.float32, torch.bfloat16) or rows.dtype != torch.int64 or not rows.is_contiguous():
        return None
    y = torch.empty(len(rows), table.inputs, dtype=table.dtype)
    places = rows.data_ptr(), y.data_ptr()
    arguments = Lookup(Progress(), operand.matrix, *places, len(rows), table.dtype == torch.bfloat16)
    make_call(operand.look_up, arguments, len(rows), recording, rows, y)
    return y


_table_operands: MutableMapping[tiles.Table, TileOperand] = WeakIdKeyDictionary()


def tile_operand(weight: tiles.Tiles) -> TileOperand | None:
    """None if the kernel cannot be compiled, or if the weight is not one matrix on a CPU."""
    stored = weight.tensors().values()
    if weight.codes.dim() != 4 or not all(tensor.is_cpu and tensor.is_contiguous() for tensor in stored):
        return None
    minimums, table = weight.minimums is not None, weight.table is not None
    group = min(weight.group, UNIT) if weight.group < weight.inputs else UNIT
    kind = weight.bits, table, SCALES[weight.scales.dtype], minimums, group
    library = kernel(*kind)
    if library is None:
        return None
    amx = hasattr(library, "amx_part") and amx_is_faster(library._name, *kind)  # an old compiler may not support it
    return TileOperand(weight, library, amx)


@cache
def kernel(bits: int, table: bool, scales: str, minimums: bool, group: int) -> ctypes.CDLL | None:
    """tile_linear.cpp, compiled for a kind of tiles; None if that is not possible."""
    if runner() is None:
        return None
    flags = {"BITS": bits, "TABLE": int(table), "SCALES": scales, "MINIMUMS": int(minimums), "GROUP": group}
    return load_library("tile_linear", **flags)

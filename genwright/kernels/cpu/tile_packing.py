"""Lay out packed weights in tiles by a C++ kernel, which is many times as fast as torch."""

import ctypes
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from genwright.kernels.cpu.build import load_library
from genwright.kernels.cpu.calls import Progress, address, make_call, runner
from genwright.quant.ggml import TYPES, Bits
from genwright.quant.int4 import ZERO, Int4
from genwright.quant.int8 import Int8
from genwright.quant.tiles import ROWS, UNIT, Tiles, by_tiles


class Packing(ctypes.Structure):
    """`Packing` of tile_packing.cpp."""

    _fields_ = (
        ("progress", Progress),
        *((name, ctypes.c_void_p) for name in ("raw", "codes", "high")),
        *((name, ctypes.c_int64) for name in ("rows", "stride", "row_bytes", "units")),
        *((name, ctypes.c_int32) for name in ("bits", "elements", "bytes", "whole", "words", "nibbles", "width")),
        *((name, ctypes.c_int32) for name in ("pairs", "pairs_shift", "plane", "plane_shift", "word", "word_shift")),
    )


def tiles_of_blocks(raw: Tensor, kind: int, empty: Callable[..., Tensor] = torch.empty) -> Tiles:
    """Rows of a quantized GGML type, uint8 [rows, bytes]; the values of `quant.ggml.tiles`, in memory of `empty`."""
    block, rows = TYPES[kind], len(raw)
    assert block.scales is not None
    columns = raw.shape[1] // block.bytes * block.elements
    scales = block.scales(raw.reshape(-1, block.bytes)).map(lambda each: by_tiles(each.reshape(rows, -1), empty))
    codes, high = _integers(raw, columns, block.bits, block.elements, block.bytes, block.where, empty)
    return Tiles(codes, high, *scales, rows, columns, block.bits, block.group, block.zero, block.table)


def tiles_of_integers(weight: Int4 | Int8) -> Tiles:
    """A matrix for which `quant.tiles.tileable` is true."""
    (rows, columns), scales = weight.shape, by_tiles(weight.scales)
    if isinstance(weight, Int8):
        codes, _ = _integers(weight.values.view(torch.uint8), columns, 8, UNIT, UNIT, Bits(bytes=0))
        return Tiles(codes, None, scales, None, None, None, rows, columns, 8, weight.group, 128)
    codes, _ = _integers(weight.words.view(torch.uint8), columns, 4, UNIT, UNIT // 2, None)
    minimums = None if weight.minimums is None else by_tiles(weight.minimums)
    zero = ZERO if minimums is None else 0
    return Tiles(codes, None, scales, minimums, None, None, rows, columns, 4, weight.group, zero)


def _integers(
    raw: Tensor,
    columns: int,
    bits: int,
    elements: int,
    size: int,
    where: Bits | None,
    empty: Callable[..., Tensor] = torch.empty,
) -> tuple[Tensor, Tensor | None]:
    """The codes and high bits of `Tiles`; `where` is None for the words of Int4."""
    library = kernel()
    assert library is not None
    raw = raw if raw.stride(1) == 1 else raw.contiguous()
    tiles, units = -(-len(raw) // ROWS), -(-columns // UNIT)
    codes = empty((tiles, units, 8 if bits == 8 else 4, ROWS), dtype=torch.int32)
    high = empty((tiles, units, bits - 4, ROWS), dtype=torch.int32) if bits in (5, 6) else None
    pointers = raw.data_ptr(), codes.data_ptr(), None if high is None else high.data_ptr()
    none = (-1, 0)
    places: tuple[int, ...] = (-1, 0, *none, *none, *none, *none)
    if where is not None:
        parts = (each or none for each in (where.nibbles, where.pairs, where.plane, where.word))
        places = (-1 if where.bytes is None else where.bytes, -1, *(number for part in parts for number in part))
    sizes = len(raw), raw.stride(0), raw.shape[1], units, bits, elements, size
    make_call(address(library, "pack_part"), Packing(Progress(), *pointers, *sizes, *places), tiles, None)
    return codes, high


@cache
def kernel() -> ctypes.CDLL | None:
    """tile_packing.cpp; None if it cannot be compiled."""
    return load_library("tile_packing") if runner() is not None else None

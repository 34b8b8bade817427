"""GGML's block types: how llama.cpp stores weights, and their dequantization.

A quantized row is a sequence of blocks. A block holds its elements as small integers with float16 scales. A block of
the "K" types has 256 elements in sub-blocks, whose scales are themselves small integers. All is little-endian.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genwright.quant.bit_planes import bit_planes
from genwright.quant.formats import Format
from genwright.quant.int4 import Int4, pack
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed
from genwright.quant.tiles import ROWS, Codes, Scales, Tiles, collect, tile

CHUNK = 1 << 20  # elements that are dequantized at a time, so that their float32 values stay in the CPU's cache
GPU_CHUNK = 1 << 25  # elements that are laid out at a time on a GPU
NIBBLES = 0x0F0F0F0F0F0F0F0F
# What the 4-bit codes of IQ4_NL and IQ4_XS, and of MXFP4, stand for, plus 128.
IQ4 = (1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241)
E2M1 = (128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116)


def dequantize(raw: Tensor, kind: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dequantize rows of the GGML type `kind` (a key of TYPES); a view if they are stored as `dtype` already."""
    # raw uint8 [rows, bytes_per_row] -> [rows, columns]
    block = TYPES[kind]
    if block.stored is not None:
        return raw.view(block.stored).to(dtype)
    columns = raw.shape[1] // block.bytes * block.elements
    blocks = raw.reshape(-1, block.bytes)
    result = torch.empty(len(blocks), block.elements, dtype=dtype)
    step = CHUNK // block.elements
    scratch = torch.empty(min(step, len(blocks)), block.elements)
    for start in range(0, len(blocks), step):
        target = result[start : start + step]
        values = target if dtype == torch.float32 else scratch[: len(target)]
        block.codes(blocks[start : start + step]).dequantize(values)
        if values is not target:
            target.copy_(values)
    return result.view(-1, columns)


def repack(raw: Tensor, kind: int) -> Packed:
    """Rows of any quantized type, exactly: in one of our formats, or in bit planes; raw as for `dequantize`."""
    block = TYPES[kind]
    rows = raw.split(max(1, (CHUNK if raw.is_cpu else GPU_CHUNK) * block.bytes // block.elements // raw.shape[1]))
    parts = [_repack(some.reshape(-1, block.bytes), kind, len(some)) for some in rows]
    return type(parts[0]).cat(parts)


def tiles(raw: Tensor, kind: int) -> Tiles:
    """Rows of any quantized type in the CPU's layout; raw as for `dequantize`."""
    block = TYPES[kind]
    columns = raw.shape[1] // block.bytes * block.elements
    pieces = raw.split(max(1, CHUNK // columns // ROWS) * ROWS)
    codes = (block.codes(rows.reshape(-1, block.bytes)).by_rows(len(rows)) for rows in pieces)
    return collect(len(raw), map(tile, codes))


def _repack(blocks: Tensor, kind: int, rows: int) -> Packed:
    if not FORMATS[kind].portable:
        codes = TYPES[kind].codes(blocks).by_rows(rows)
        return bit_planes(replace(codes, bits=TYPES[kind].where.width))
    half = blocks.contiguous().view(torch.float16).view(rows, -1, blocks.shape[1] // 2)
    scales = half[:, :, 0].contiguous()
    group = TYPES[kind].elements
    if FORMATS[kind].kind == "int8":
        return Int8(blocks[:, 2:].reshape(rows, -1).view(torch.int8), scales, group)
    minimums = half[:, :, 1].contiguous() if FORMATS[kind].asymmetric else None
    nibbles = _nibbles(blocks[:, -group // 2 :], group // 2).view(rows, -1)
    return Int4(pack(nibbles), scales, minimums, nibbles.shape[1], group)


# The scales of blocks uint8 [n, bytes], as those of a matrix of n rows.


def _d(blocks: Tensor) -> Scales:
    return Scales(_half(blocks, 0))


def _dm(blocks: Tensor) -> Scales:
    return Scales(_half(blocks, 0), _half(blocks, 2))


def _q2_k(blocks: Tensor) -> Scales:
    # A scale in the lower half of a byte and a minimum in the upper half, for every 16 columns.
    scales, minimums = (part.view(torch.int8) for part in (blocks[:, :16] & 15, blocks[:, :16] >> 4))
    return Scales(scales, minimums, _half(blocks, 80), -_half(blocks, 82))


def _q3_k(blocks: Tensor) -> Scales:
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    low = torch.cat((low & 15, low >> 4), dim=1)
    high = torch.cat([high >> 2 * i & 3 for i in range(4)], dim=1) << 4
    return Scales((low | high).view(torch.int8) - 32, factors=_half(blocks, 108))


def _q4_k(blocks: Tensor) -> Scales:
    """Q4_K and Q5_K: eight sub-blocks of 32 with 6-bit scales and minima, packed into the 12 bytes at offset 4."""
    # Bytes 0-3 and 4-7: the first four scales and minima; their top two bits are the high bits of the other four.
    # Bytes 8-11: the low nibbles of the other four, scales in the low half and minima in the high half.
    first, low = blocks[:, 4:12].reshape(-1, 2, 4), blocks[:, 12:16]
    other = torch.stack((low & 15, low >> 4), dim=1) | first >> 6 << 4
    scales, minimums = torch.cat((first & 63, other), dim=2).view(torch.int8).unbind(1)
    return Scales(scales, minimums, _half(blocks, 0), -_half(blocks, 2))


def _q6_k(blocks: Tensor) -> Scales:
    return Scales(blocks[:, 192:208].view(torch.int8), factors=_half(blocks, 208))


def _iq4_xs(blocks: Tensor) -> Scales:
    # Six bits for each 32 columns: two in the 16 bits at 2, four in the bytes from 4 to 8.
    high = torch.stack([blocks[:, 2 + i // 4] >> 2 * (i % 4) & 3 for i in range(8)], dim=1) << 4
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), dim=2).view(-1, 8)
    return Scales((low | high).view(torch.int8) - 32, factors=_half(blocks, 0))


def _mxfp4(blocks: Tensor) -> Scales:
    # The power of two e - 128, because the table has twice the values of e2m1; the smallest two are subnormal.
    e = blocks[:, :1].int()
    return Scales(torch.where(e > 1, e - 1 << 23, 1 << 21 + e).view(torch.float32))


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte offset of every block, [blocks, 1]."""
    return blocks.view(torch.float16)[:, at // 2, None].clone(memory_format=torch.contiguous_format)


def _nibbles(packed: Tensor, width: int) -> Tensor:
    """For each `width` bytes, the low nibbles, then the high ones; uint8 [blocks, bytes] -> [blocks, 2 * bytes]."""
    # Eight bytes at a time, because torch is slow on rows of 16 single bytes.
    words = packed.clone(memory_format=torch.contiguous_format).view(torch.int64).view(len(packed), -1, width // 8)
    return torch.stack((words, words >> 4), dim=2).bitwise_and_(NIBBLES).view(torch.uint8).view(len(packed), -1)


def _pairs(packed: Tensor) -> Tensor:
    """For each 32 bytes, their lowest two bits, then the next ones; uint8 [blocks, bytes] -> [blocks, 4 * bytes]."""
    quarters = packed.reshape(len(packed), -1, 32)
    return torch.stack([quarters >> 2 * i & 3 for i in range(4)], dim=2).view(len(packed), -1)


def _bits(packed: Tensor) -> Tensor:
    """Four bytes of bits, lowest first, as 0 or 1 per element; uint8 [blocks, 4] -> [blocks, 32]."""
    byte, bit = torch.arange(256, device=packed.device), torch.arange(8, device=packed.device)
    table = byte[:, None] >> bit & 1  # the eight bits of every byte
    return table.to(torch.uint8).view(torch.int64).take(packed.long()).view(torch.uint8)


@dataclass(frozen=True)
class Bits:
    """Where the integers of a block are: the sum of these parts, each by its byte offset."""

    bytes: int | None = None  # signed; 128 is added
    nibbles: tuple[int, int] | None = None  # and how many bytes' low halves come before their high halves
    pairs: tuple[int, int] | None = None  # 64 bytes; for each 32, their lowest two bits, then the next ones; left shift
    plane: tuple[int, int] | None = None  # 32 bytes; bit i of each for the i-th 32 columns; left shift
    word: tuple[int, int] | None = None  # 4 bytes; bit i for column i; left shift

    @property
    def width(self) -> int:
        """How many bits an integer of fewer than eight has."""
        return 4 * bool(self.nibbles) + 2 * bool(self.pairs) + bool(self.plane or self.word)


@dataclass(frozen=True)
class BlockType:
    """The elements and bytes of a block, and either its float dtype or how its integers and scales are read."""

    name: str
    elements: int
    bytes: int
    where: Bits = Bits()
    scales: Callable[[Tensor], Scales] | None = None
    bits: int = 4  # of an integer
    group: int = 32  # elements per scale
    zero: int = 0
    table: tuple[int, ...] | None = None
    stored: torch.dtype | None = None

    def codes(self, blocks: Tensor) -> Codes:
        """The integers and scales of blocks uint8 [n, bytes], as a matrix of n rows."""
        assert self.scales is not None
        return Codes(self.integers(blocks), self.bits, self.group, self.scales(blocks), self.zero, self.table)

    def integers(self, blocks: Tensor) -> Tensor:
        where = self.where
        if where.bytes is not None:
            return blocks[:, where.bytes :] ^ 128
        q = blocks.new_zeros(len(blocks), self.elements)
        if where.nibbles is not None:
            first, width = where.nibbles
            q = _nibbles(blocks[:, first : first + self.elements // 2], width)
        if where.pairs is not None:
            first, shift = where.pairs
            q += _pairs(blocks[:, first : first + 64]) << shift
        if where.plane is not None:
            first, shift = where.plane
            planes = [(blocks[:, first : first + 32] >> i & 1) << shift for i in range(8)]
            q += torch.stack(planes, dim=1).view(-1, 256)
        if where.word is not None:
            first, shift = where.word
            q += _bits(blocks[:, first : first + 4]) << shift
        return q


TYPES = {
    0: BlockType("F32", 1, 4, stored=torch.float32),
    1: BlockType("F16", 1, 2, stored=torch.float16),
    2: BlockType("Q4_0", 32, 18, Bits(nibbles=(2, 16)), _d, zero=8),
    3: BlockType("Q4_1", 32, 20, Bits(nibbles=(4, 16)), _dm),
    6: BlockType("Q5_0", 32, 22, Bits(nibbles=(6, 16), word=(2, 4)), _d, bits=5, zero=16),
    7: BlockType("Q5_1", 32, 24, Bits(nibbles=(8, 16), word=(4, 4)), _dm, bits=5),
    8: BlockType("Q8_0", 32, 34, Bits(bytes=2), _d, bits=8, zero=128),
    10: BlockType("Q2_K", 256, 84, Bits(pairs=(16, 0)), _q2_k, group=16),
    11: BlockType("Q3_K", 256, 110, Bits(pairs=(32, 0), plane=(0, 2)), _q3_k, group=16, zero=4),
    12: BlockType("Q4_K", 256, 144, Bits(nibbles=(16, 32)), _q4_k),
    13: BlockType("Q5_K", 256, 176, Bits(nibbles=(48, 32), plane=(16, 4)), _q4_k, bits=5),
    14: BlockType("Q6_K", 256, 210, Bits(nibbles=(0, 64), pairs=(128, 4)), _q6_k, bits=6, group=16, zero=32),
    20: BlockType("IQ4_NL", 32, 18, Bits(nibbles=(2, 16)), _d, zero=128, table=IQ4),
    23: BlockType("IQ4_XS", 256, 136, Bits(nibbles=(8, 16)), _iq4_xs, zero=128, table=IQ4),
    30: BlockType("BF16", 1, 2, stored=torch.bfloat16),
    39: BlockType("MXFP4", 32, 17, Bits(nibbles=(1, 16)), _mxfp4, zero=128, table=E2M1),
}


@dataclass(frozen=True)
class BlockFormat(Format):
    """A type that only tiles and bit planes hold; a matrix may be split between its blocks."""

    number: int = 0  # its key in TYPES

    @property
    def portable(self) -> bool:
        return False

    def bytes(self, shape: tuple[int, ...], tiled: bool = False) -> int:
        block, rows = TYPES[self.number], ROWS if tiled else 1
        raw = torch.zeros(rows, block.bytes, dtype=torch.uint8)
        one = tiles(raw, self.number) if tiled else repack(raw, self.number)
        size = sum(tensor.nbytes for tensor in one.tensors().values())
        return size * -(-shape[0] // rows) * -(-shape[1] // block.elements)


# The formats that hold each quantized type exactly: one of ours, or tiles and bit planes.
FORMATS: dict[int, Format] = {
    number: BlockFormat(block.name, block.elements, number=number)
    for number, block in TYPES.items()
    if block.stored is None
}
FORMATS |= {2: Format("int4", 32), 3: Format("int4", 32, asymmetric=True), 8: Format("int8", 32)}

# Types that are not supported; their names are for error messages.
OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

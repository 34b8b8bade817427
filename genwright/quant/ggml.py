"""GGML's block types: how llama.cpp stores weights, and their dequantization.

A quantized row is a sequence of blocks. A block holds its elements as small integers with float16 scales. A block of
the "K" types has 256 elements in sub-blocks, whose scales are themselves small integers. All is little-endian.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genwright.quant.formats import Format
from genwright.quant.int4 import Int4, pack
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed

CHUNK = 1 << 20  # elements that are dequantized at a time, so that their float32 values stay in the CPU's cache
NIBBLES = 0x0F0F0F0F0F0F0F0F


def dequantize(raw: Tensor, kind: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dequantize rows of the GGML type `kind` (a key of TYPES); a view if they are stored as `dtype` already."""
    # raw uint8 [rows, bytes_per_row] -> [rows, columns]
    block = TYPES[kind]
    if block.stored is not None:
        return raw.view(block.stored).to(dtype)
    assert block.dequantize is not None
    columns = raw.shape[1] // block.bytes * block.elements
    blocks = raw.reshape(-1, block.bytes)
    result = torch.empty(len(blocks), block.elements, dtype=dtype)
    step = CHUNK // block.elements
    scratch = torch.empty(min(step, len(blocks)), block.elements)
    for start in range(0, len(blocks), step):
        target = result[start : start + step]
        values = target if dtype == torch.float32 else scratch[: len(target)]
        block.dequantize(blocks[start : start + step], values)
        if values is not target:
            target.copy_(values)
    return result.view(-1, columns)


def repack(raw: Tensor, kind: int) -> Packed:
    """Rows of a type that one of our formats holds exactly (a key of FORMATS); raw as for `dequantize`."""
    block = TYPES[kind]
    rows = raw.split(max(1, CHUNK * block.bytes // block.elements // raw.shape[1]))
    parts = [_repack(some.reshape(-1, block.bytes), kind, len(some)) for some in rows]
    return type(parts[0]).cat(parts)


def _repack(blocks: Tensor, kind: int, rows: int) -> Packed:
    half = blocks.contiguous().view(torch.float16).view(rows, -1, blocks.shape[1] // 2)
    scales = half[:, :, 0].contiguous()
    group = TYPES[kind].elements
    if FORMATS[kind].kind == "int8":
        return Int8(blocks[:, 2:].reshape(rows, -1).view(torch.int8), scales, group)
    minimums = half[:, :, 1].contiguous() if FORMATS[kind].asymmetric else None
    nibbles = _nibbles(blocks[:, -group // 2 :], group // 2).view(rows, -1)
    return Int4(pack(nibbles), scales, minimums, nibbles.shape[1], group)


def _q4_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(_nibbles(blocks[:, 2:], 16)).sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor, out: Tensor) -> None:
    out.copy_(_nibbles(blocks[:, 4:], 16)).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor, out: Tensor) -> None:
    q = _nibbles(blocks[:, 6:], 16).add_(_fifth_bits(blocks[:, 2:6]))
    out.copy_(q).sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor, out: Tensor) -> None:
    q = _nibbles(blocks[:, 8:], 16).add_(_fifth_bits(blocks[:, 4:8]))
    out.copy_(q).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks[:, 2:].view(torch.int8)).mul_(_half(blocks, 0))


def _q4_k(blocks: Tensor, out: Tensor) -> None:
    _affine_sub_blocks(blocks, _nibbles(blocks[:, 16:], 32), out)


def _q5_k(blocks: Tensor, out: Tensor) -> None:
    # Bit i of the 32 bytes at 16 is the fifth bit of sub-block i.
    fifth = torch.stack([(blocks[:, 16:48] >> i & 1) << 4 for i in range(8)], dim=1)
    _affine_sub_blocks(blocks, _nibbles(blocks[:, 48:], 32).add_(fifth.view(-1, 256)), out)


def _q6_k(blocks: Tensor, out: Tensor) -> None:
    # Each half of 128 elements has 64 bytes of low nibbles and 32 bytes with the two high bits of its four quarters.
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    high = torch.stack([(high >> 2 * quarter & 3) << 4 for quarter in range(4)], dim=2)
    q = _nibbles(blocks[:, :128], 64).add_(high.view(-1, 256))
    scales = blocks[:, 192:208].view(torch.int8) * _half(blocks, 208)
    out.copy_(q).sub_(32).view(-1, 16, 16).mul_(scales[:, :, None])


def _affine_sub_blocks(blocks: Tensor, q: Tensor, out: Tensor) -> None:
    """Q4_K and Q5_K: eight sub-blocks of 32 with 6-bit scales and minima, packed into the 12 bytes at offset 4."""
    # Bytes 0-3 and 4-7: the first four scales and minima; their top two bits are the high bits of the other four.
    # Bytes 8-11: the low nibbles of the other four, scales in the low half and minima in the high half.
    first, low = blocks[:, 4:12].reshape(-1, 2, 4), blocks[:, 12:16]
    other = torch.stack((low & 15, low >> 4), dim=1) | first >> 6 << 4
    scale, minimum = torch.cat((first & 63, other), dim=2).unbind(1)
    out = out.copy_(q).view(-1, 8, 32)
    out.mul_((scale * _half(blocks, 0))[:, :, None]).sub_((minimum * _half(blocks, 2))[:, :, None])


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte offset of every block, float32 [blocks, 1]."""
    return blocks.view(torch.float16)[:, at // 2].float()[:, None]


def _nibbles(packed: Tensor, width: int) -> Tensor:
    """For each `width` bytes, the low nibbles, then the high ones; uint8 [blocks, bytes] -> [blocks, 2 * bytes]."""
    # Eight bytes at a time, because torch is slow on rows of 16 single bytes.
    words = packed.clone(memory_format=torch.contiguous_format).view(torch.int64).view(len(packed), -1, width // 8)
    return torch.stack((words, words >> 4), dim=2).bitwise_and_(NIBBLES).view(torch.uint8).view(len(packed), -1)


def _fifth_bits(packed: Tensor) -> Tensor:
    """Four bytes of bits, lowest first, as 0 or 16 per element; uint8 [blocks, 4] -> [blocks, 32]."""
    table = (torch.arange(256)[:, None] >> torch.arange(8) & 1) << 4  # the eight bits of every byte
    return table.to(torch.uint8).view(torch.int64).take(packed.long()).view(torch.uint8)


@dataclass(frozen=True)
class BlockType:
    """The elements and bytes of a block, and either its float dtype or the function that dequantizes it."""

    name: str
    elements: int
    bytes: int
    dequantize: Callable[[Tensor, Tensor], None] | None = None  # blocks uint8 [n, bytes], out float32 [n, elements]
    stored: torch.dtype | None = None


TYPES = {
    0: BlockType("F32", 1, 4, stored=torch.float32),
    1: BlockType("F16", 1, 2, stored=torch.float16),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    30: BlockType("BF16", 1, 2, stored=torch.bfloat16),
}

# Types that our own formats hold exactly.
FORMATS = {2: Format("int4", 32), 3: Format("int4", 32, asymmetric=True), 8: Format("int8", 32)}

# Types that are not supported; their names are for error messages.
OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

"""Packed weights as GGML's blocks of 32, the inverse of `ggml.repack`."""

import torch
from torch import Tensor

from genwright.quant.formats import Format
from genwright.quant.int4 import Int4, unpack
from genwright.quant.int8 import Int8
from genwright.quant.packed import Packed

BLOCK = 32
# GGML's types that hold one of our formats: their numbers in GGML, the formats and the bytes of a block.
BLOCK_TYPES = {
    "Q4_0": (2, Format("int4", BLOCK), 18),
    "Q4_1": (3, Format("int4", BLOCK, asymmetric=True), 20),
    "Q8_0": (8, Format("int8", BLOCK), 34),
}


def to_blocks(packed: Packed) -> Tensor:
    """uint8 [rows, bytes] of a matrix in a format of BLOCK_TYPES; its columns are whole blocks."""
    assert isinstance(packed, Int4 | Int8) and packed.group == BLOCK and packed.shape[-1] % BLOCK == 0
    scales = packed.scales.contiguous().view(torch.uint8).unflatten(-1, (-1, 2))  # little-endian float16
    if isinstance(packed, Int8):
        return torch.cat((scales, packed.values.view(torch.uint8).unflatten(-1, (-1, BLOCK))), dim=-1).flatten(-2)
    low, high = unpack(packed.words)[..., : packed.inputs].to(torch.uint8).unflatten(-1, (-1, 2, 16)).unbind(-2)
    parts = [scales, low | high << 4]
    if packed.minimums is not None:
        parts.insert(1, packed.minimums.contiguous().view(torch.uint8).unflatten(-1, (-1, 2)))
    return torch.cat(parts, dim=-1).flatten(-2)

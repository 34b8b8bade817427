"""Unsigned integers of 2, 4 or 8 bits in int32 words, lowest bits first: how GPTQ, AWQ and others store weights."""

import torch
from torch import Tensor

BITS = (2, 4, 8)
# AutoAWQ orders the nibbles of a word 0 2 4 6 1 3 5 7; this is the nibble of each of its eight values.
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)


def unpack(words: Tensor, bits: int) -> Tensor:
    """uint8 [..., count * 32 / bits] of int32 or uint8 [..., count]."""
    values = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return values
    mask = (1 << bits) - 1
    return torch.stack([values >> at & mask for at in range(0, 8, bits)], dim=-1).flatten(-2)


def unpack_awq(words: Tensor) -> Tensor:
    """uint8 [..., 8 * count] of AutoAWQ's int32 [..., count]."""
    return unpack(words, 4).unflatten(-1, (-1, 8))[..., AWQ_NIBBLES].flatten(-2)

"""Cache rows in 8 or 4 bits: groups lie inside one token's vector, so a token never depends on its neighbours.

8 bits: x = q s. 4 bits: x = q s + m; a byte holds element j in its low nibble and element j + ceil(size / 2) in its
high one, so that a vector's two halves are whole. Scales and minimums are float16.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from genwright.quant import int4, int8
from genwright.quant.packed import in_groups, spread

# Elements per scale. Heads have at most 256, so in 8 bits one scale each; a latent's rotary key has one of its own.
# In 4 bits groups of 32 cost SmolLM2 6.4 % of perplexity and groups of 16 2.4 %; turning keys and values by a Hadamard
# matrix, or searching for narrower ranges, brought groups of 32 only to 6.1 and 6.3 %.
GROUP = {8: 256, 4: 16}
Entry = tuple[tuple[int, ...], torch.dtype]


def entries(name: str, shape: tuple[int, ...], bits: int) -> dict[str, Entry]:
    """The tensors that hold one token's row `name` of this shape."""
    *outer, size = shape
    scales = ((*outer, -(-size // GROUP[bits])), torch.float16)
    if bits == 8:
        return {name: (shape, torch.int8), f"{name}.scale": scales}
    packed = ((*outer, -(-size // 2)), torch.uint8)
    return {name: packed, f"{name}.scale": scales, f"{name}.minimum": scales}


def pack(name: str, rows: Tensor, bits: int) -> dict[str, Tensor]:
    """Rows [tokens, ..., size] as those tensors, rounded to nearest."""
    size = rows.shape[-1]
    if bits == 8:
        packed = int8.quantize(rows, GROUP[8], torch.float16)
        return {name: packed.values, f"{name}.scale": packed.scales}
    groups = in_groups(rows, GROUP[4])
    scales, minimums = int4.fit(groups, True, torch.float16)
    assert minimums is not None
    q = int4.nearest(groups, scales[..., None], minimums[..., None]).to(torch.uint8).flatten(-2)[..., :size]
    low, high = pad(q, (0, size % 2)).chunk(2, dim=-1)
    return {name: low | high << 4, f"{name}.scale": scales, f"{name}.minimum": minimums}


def unpack(name: str, tensors: Mapping[str, Tensor], size: int, bits: int, dtype: torch.dtype) -> Tensor:
    """Those tensors' rows [..., size] in `dtype`."""
    q, scales = tensors[name], spread(tensors[f"{name}.scale"], GROUP[bits], size)
    if bits == 8:
        return q.float().mul_(scales).to(dtype)
    wide = torch.cat((q & 15, q >> 4), dim=-1)[..., :size].float()
    return wide.mul_(scales).add_(spread(tensors[f"{name}.minimum"], GROUP[bits], size)).to(dtype)

"""KV cache rows in 8 or 4 bits. Groups lie inside one token's vector, so a token does not depend on other tokens.

8 bits: x = q s. 4 bits: x = q s + m, where a byte holds element j in its low nibble and element j + ceil(size / 2) in
its high nibble, so that each half of the vector is contiguous. Scales and minimums are float16.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from genwright.quant import int4, int8
from genwright.quant.packed import in_groups, spread

# Elements per scale. A head has at most 256, so it has one scale in 8 bits. In 4 bits, groups of 32 raise SmolLM2's
# perplexity by 6.4 % and groups of 16 by 2.4 %; a Hadamard rotation of keys and values, or a search for narrower
# ranges, only lowered the 6.4 % to 6.1 and 6.3 %.
GROUP = {8: 256, 4: 16}
Entry = tuple[tuple[int, ...], torch.dtype]


def entries(name: str, shape: tuple[int, ...], bits: int) -> dict[str, Entry]:
    """Shapes and dtypes of the tensors that store one token's row `name` of this shape."""
    *outer, size = shape
    scales = ((*outer, -(-size // GROUP[bits])), torch.float16)
    if bits == 8:
        return {name: (shape, torch.int8), f"{name}.scale": scales}
    packed = ((*outer, -(-size // 2)), torch.uint8)
    return {name: packed, f"{name}.scale": scales, f"{name}.minimum": scales}


def pack(name: str, rows: Tensor, bits: int) -> dict[str, Tensor]:
    """Quantize rows [tokens, ..., size] to the tensors of `entries`, rounding to nearest."""
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
    """Dequantize the tensors of `entries` to rows [..., size] in `dtype`."""
    q, scales = tensors[name], spread(tensors[f"{name}.scale"], GROUP[bits], size)
    if bits == 8:
        return q.float().mul_(scales).to(dtype)
    q = torch.cat((q & 15, q >> 4), dim=-1)[..., :size].float()
    return q.mul_(scales).add_(spread(tensors[f"{name}.minimum"], GROUP[bits], size)).to(dtype)

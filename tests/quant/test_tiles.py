"""Tiles hold the same weights as the formats that they are made of."""

import pytest
import torch

from genwright.quant.formats import parse_format
from genwright.quant.packed import Packed
from genwright.quant.tiles import Codes, Scales, Table, Tiles, as_tiles, join, tile, tileable

SIZES = [(1, 1), (3, 5), (33, 333), (64, 1027), (100, 256)]


@pytest.mark.parametrize("name", ["int8", "int8:g32", "int4", "int4:g64:asym", "int4:g128"])
def test_integers_are_held_exactly(name: str) -> None:
    torch.manual_seed(0)
    for shape in SIZES:
        packed = parse_format(name).quantize(torch.randn(shape))
        assert tileable(packed)
        tiles = as_tiles(packed)
        assert tiles.shape == shape
        assert torch.equal(tiles.dequantize(torch.float32), packed.dequantize(torch.float32))


def test_groups_that_are_not_whole_units_are_not_tiled() -> None:
    for name in ("int4:g8", "int4:g96", "int8:g24", "fp8"):
        assert not tileable(parse_format(name).quantize(torch.randn(32, 512)))
    assert not tileable(torch.randn(32, 512))
    assert not tileable(parse_format("int4").quantize(torch.randn(2, 32, 512)))


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_every_code_and_factors_of_scales(bits: int) -> None:
    torch.manual_seed(0)
    q = torch.randint(0, 1 << bits, (40, 512), dtype=torch.uint8)
    small = torch.randint(-127, 127, (40, 32), dtype=torch.int8)
    scales = Scales(small, small.flip(0), torch.randn(40, 2).half(), torch.randn(40, 2).half())
    tiles = tile(Codes(q, bits, 16, scales, 3))
    assert torch.equal(tiles.take(torch.arange(40)).q, q)
    wide = (q.float() - 3) * (small * scales.factors.float().repeat_interleave(16, 1)).repeat_interleave(16, 1)
    wide += (small.flip(0) * scales.minimum_factors.float().repeat_interleave(16, 1)).repeat_interleave(16, 1)
    assert torch.equal(tiles.dequantize(torch.float32), wide)
    table = Table(**vars(tiles), dtype=torch.bfloat16)
    assert torch.equal(table.look_up(torch.tensor([39, 3])), wide[[39, 3]].bfloat16())


def test_matrices_are_joined_if_their_tiles_are_whole() -> None:
    torch.manual_seed(0)
    for rows, count in (((32, 16, 5), 1), ((32, 5, 16), 3)):
        parts: list[Packed] = [as_tiles(parse_format("int4").quantize(torch.randn(n, 64))) for n in rows]
        joined = join(parts)
        assert len(joined) == count and all(isinstance(part, Tiles) for part in joined)
        wide = torch.cat([part.dequantize(torch.float32) for part in parts])
        assert torch.equal(torch.cat([part.dequantize(torch.float32) for part in joined]), wide)

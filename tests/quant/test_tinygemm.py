"""torch's int4 tiles, written here lane by lane from their definition."""

import pytest
import torch

from genwright.quant.tinygemm import columns, repack, tile


def pack_tiles(q: torch.Tensor, inner: int) -> torch.Tensor:
    """The words that `_convert_weight_to_int4pack` makes from q [n, k] on a GPU."""
    n, k = q.shape
    sizes = (n // 8, k // (inner * 16), 32, inner // 2)
    row_tile, outer, lane, word = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    row, first = row_tile * 8 + lane // 4, (outer * inner + word * 2) * 16 + lane % 4 * 2
    v = [q[row, first + tile * 16 + half * 8 + one].long() for tile in (0, 1) for half in (0, 1) for one in (0, 1)]
    lowest_first = (v[0], v[2], v[4], v[6], v[1], v[3], v[5], v[7])
    words = sum(nibble << 4 * place for place, nibble in enumerate(lowest_first))
    return (words - (words >> 31 << 32)).to(torch.int32)


def quantize_groups(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """q [n, k] and bfloat16 scales and zeros [groups, n, 2] by gpt-fast's formulas."""
    groups = weight.float().unflatten(1, (-1, group))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low).clamp(min=1e-6) / 15).bfloat16()
    zeros = (low + scales.float() * 8).bfloat16()
    least = zeros.float() - scales.float() * 8
    q = ((groups - least[..., None]) / scales.float()[..., None]).round().clamp(0, 15)
    return q.flatten(1).int(), torch.stack((scales, zeros), dim=-1).transpose(0, 1).contiguous()


def widen(q: torch.Tensor, scales_and_zeros: torch.Tensor) -> torch.Tensor:
    scales, zeros = scales_and_zeros.double().transpose(0, 1).unbind(-1)
    group = q.shape[1] // scales.shape[1]
    return (q.double() - 8) * scales.repeat_interleave(group, 1) + zeros.repeat_interleave(group, 1)


@pytest.mark.parametrize(("inner", "k", "group"), [(2, 96, 32), (4, 128, 64), (8, 256, 128), (8, 1024, 32)])
def test_tiles_are_converted_to_int4(inner: int, k: int, group: int) -> None:
    weight = torch.randn(16, k, generator=torch.Generator().manual_seed(0)) / 30
    q, scales_and_zeros = quantize_groups(weight, group)
    words = pack_tiles(q, inner)
    assert columns(words) == k
    for inputs in (k, k - 20):  # gpt-fast pads widths
        packed = repack(words, scales_and_zeros, inputs, group)
        assert packed.shape == (16, inputs) and packed.group == group
        wanted = widen(q, scales_and_zeros)[:, :inputs]
        step = packed.scales.double().max()
        assert (packed.dequantize(torch.float64) - wanted).abs().max() < 0.01 * step
        assert (packed.dequantize(torch.float32) - weight[:, :inputs]).abs().max() < 0.6 * step


@pytest.mark.parametrize("inner", [2, 4, 8])
def test_tiles_are_written_as_they_are_read(inner: int) -> None:
    q = torch.randint(0, 16, (24, 256), generator=torch.Generator().manual_seed(0))
    assert torch.equal(tile(q, inner), pack_tiles(q, inner))

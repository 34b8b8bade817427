"""Grouped products of fp8 experts with rounded inputs, against float64."""

import pytest
import torch
from kernels.triton.test_fp8_inputs import rounded
from kernels.triton.test_grouped_matmul import expected

from genwright.kernels.triton.fp8_experts import grouped_fp8_matmul, serves
from genwright.kernels.triton.grouped_matmul import GroupedTiles, group_pairs
from genwright.quant.fp8 import quantize, quantize_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check(tokens, experts, outputs, columns, gate, tiles=None, dtype=torch.float32, top_k=2, by_pair=False):
    torch.manual_seed(tokens)
    weight = quantize(torch.randn(experts * outputs, columns, device=DEVICE) * columns**-0.5).unflatten(
        0, (experts, -1)
    )
    ids = torch.rand(tokens, experts, device=DEVICE).topk(top_k).indices
    x = torch.randn(tokens * top_k if by_pair else tokens, columns, device=DEVICE).to(dtype)
    y = grouped_fp8_matmul(x, weight, group_pairs(ids, experts), -(-tokens * top_k // experts), gate, tiles)
    rows = rounded(x) if by_pair else rounded(x).repeat_interleave(top_k, 0)
    want = expected(rows, weight.dequantize(torch.float32), ids.flatten(), gate)
    assert ((y - want).abs() / want.abs().clamp(min=1)).max() < (1e-4 if DEVICE == "cpu" else 2e-2)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("pairs", [16, 64])
def test_equals_float64(gate, pairs):
    check(9, 5, 256, 256, gate, GroupedTiles(pairs, 64, 128, 1, 4))


def test_only_blocks_of_128_columns_are_served():
    weight = torch.randn(256, 256)
    assert serves(quantize(weight)) and not serves(quantize_rows(weight)) and not serves(weight)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [3, 64, 300, 2000])
def test_equals_float64_at_size(tokens):
    check(tokens, 8, 2816, 2048, True, dtype=torch.bfloat16)
    check(tokens, 8, 2048, 1408, False, dtype=torch.bfloat16, by_pair=True)

"""Unpacked weights against `dequantize`, bit for bit, and against the format's formula in float64."""

import pytest
import torch

from genwright.quant import int4
from genwright.quant.formats import parse_format
from genwright.quant.fp8 import Fp8Blocks

pytest.importorskip("triton")

from genwright.kernels.triton.unpack import unpack

FORMATS = ["int8", "int8:g32", "int8:g40", "int4", "int4:g40", "int4:g128", "int4:g64:asym", "int4:g512:asym"]
FORMATS += ["fp8", "fp8:channel"]
GPU = torch.cuda.is_available()
TYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if GPU else [])  # the interpreter truncates to bfloat16
SHAPES = [(1, 40), (17, 1001), (33, 300), (130, 137)] + ([(4096, 11008)] if GPU else [])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_format_has_the_bits_of_dequantize(name, shape, device):
    weight = parse_format(name).quantize(torch.randn(shape, device=device) * 0.02)
    for dtype in TYPES:
        got = unpack(weight, dtype)
        assert got.dtype == dtype and got.shape == shape
        assert torch.equal(got, weight.dequantize(dtype))


@pytest.mark.parametrize("asymmetric", [False, True])
def test_int4_equals_its_formula(asymmetric, device):
    q = torch.randint(16, (19, 203), device=device)
    scales, minimums = torch.randn(2, 19, 6, device=device)
    weight = int4.Int4(int4.pack(q), scales, minimums if asymmetric else None, 203, 40)
    group = torch.arange(203, device=device) // 40
    scale = scales.double()[:, group]
    wanted = q * scale + minimums.double()[:, group] if asymmetric else (q - 8) * scale
    torch.testing.assert_close(unpack(weight, torch.float32).double(), wanted, rtol=2e-7, atol=1e-6)


def test_lower_fp8_blocks_and_experts(device):
    parts = [parse_format("fp8").quantize(torch.randn(rows, 300, device=device)) for rows in (40, 72)]
    fused = Fp8Blocks.cat(parts)
    assert fused.height == 8
    assert torch.equal(unpack(fused, torch.float16), torch.cat([part.dequantize(torch.float16) for part in parts]))
    stack = parse_format("int4").quantize(torch.randn(3, 20, 64, device=device))
    assert torch.equal(unpack(stack[1], torch.float16), stack[1].dequantize(torch.float16))

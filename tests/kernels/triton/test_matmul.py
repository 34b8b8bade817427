"""Products of few rows against float64 products of the dequantized weights."""

import pytest
import torch

from genwright.quant.formats import parse_format

pytest.importorskip("triton")

from genwright.kernels.triton.matmul import Tiles, packed_matmul

FORMATS = ["plain", "int8", "int8:g32", "int4", "int4:g40", "int4:g128", "int4:g64:asym", "fp8", "fp8:channel"]
GPU = torch.cuda.is_available()
# Sums of 11,008 products in float32 are off by 2e-6 on a GPU. The interpreter has no bfloat16 arithmetic.
TYPES = {torch.float32: 3e-6 if GPU else 1e-6, torch.float16: 8e-4} | ({torch.bfloat16: 5e-3} if GPU else {})
SHAPES = [(3, 40, 300), (17, 33, 256), (1, 16, 1000)] + ([(1, 4096, 4096), (70, 4096, 11008)] if GPU else [])


def weight_of(name: str, outputs: int, inputs: int, dtype: torch.dtype, device: str):
    wide = torch.randn(outputs, inputs, device=device) * 0.02
    return wide.to(dtype) if name == "plain" else parse_format(name).quantize(wide)


def exact(x, weight, bias=None):
    wide = weight.double() if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32).double()
    return x.double() @ wide.T + (0 if bias is None else bias.double())


def relative(y, wanted):
    return ((y.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_format_equals_float64(name, dtype, device):
    for rows, outputs, inputs in SHAPES:
        weight = weight_of(name, outputs, inputs, dtype, device)
        x, bias = torch.randn(rows, inputs, device=device).to(dtype), torch.randn(outputs, device=device).to(dtype)
        assert relative(packed_matmul(x, weight), exact(x, weight)) < TYPES[dtype]
        if inputs == 300:
            for split in (False, True):
                y = packed_matmul(x, weight, bias, tiles=Tiles(32, 128, 2, 4, split))
                assert relative(y, exact(x, weight, bias)) < TYPES[dtype]


@pytest.mark.parametrize("name", ["plain", "int8", "int4", "fp8"])
def test_a_rows_bits_do_not_depend_on_the_others(name, device):
    dtype = torch.bfloat16 if GPU else torch.float16
    weight = weight_of(name, 48, 320, dtype, device)
    x = torch.randn(35, 320, device=device).to(dtype)
    together = packed_matmul(x, weight, deterministic=True)
    for row in (0, 17, 34):
        assert torch.equal(packed_matmul(x[row : row + 1], weight, deterministic=True)[0], together[row])


def test_strided_rows(device):
    x = torch.randn(5, 128, device=device)
    weight = weight_of("int4", 16, 64, torch.float32, device)
    assert relative(packed_matmul(x[:, 64:], weight), exact(x[:, 64:], weight)) < 1e-6
    assert relative(packed_matmul(x.T[:64].contiguous().T, weight), exact(x[:, :64], weight)) < 1e-6

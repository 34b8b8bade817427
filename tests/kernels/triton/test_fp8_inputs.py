"""Rounding of inputs to fp8, and products with rounded inputs against float64."""

import pytest
import torch

from genwright.kernels.triton.elementwise import rms_norm, silu_mul
from genwright.kernels.triton.fp8_inputs import fp8_linear, quantize_gated, quantize_inputs, quantize_norm, serves
from genwright.quant.fp8 import quantize

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rounded(x: torch.Tensor) -> torch.Tensor:
    """What the values and scales stand for, in float64."""
    values, scales = quantize_inputs(x)
    return (values.float().double() * scales.double().repeat_interleave(128, 1)[:, : x.shape[1]])[: len(x)]


def test_values_that_fp8_holds_are_kept():
    x = (torch.randn(6, 320) * 20).to(torch.float8_e4m3fn).float()
    x[:, ::128] = 448
    factor = torch.tensor([4.0, 1, 0.25]).repeat_interleave(128)[:320]
    values, scales = quantize_inputs((x * factor).to(DEVICE))
    assert values.shape == (8, 320) and scales.shape == (8, 3) and scales.stride() == (1, 8)
    assert torch.equal(values[:6].float().cpu(), x) and torch.equal(scales[:6].cpu(), factor[::128].expand(6, 3))


@pytest.mark.gpu  # the interpreter does not round to the nearest value of fp8
def test_other_values_are_rounded_to_the_nearest():
    x = torch.randn(6, 320, device="cuda") * torch.logspace(-3, 3, 320, device="cuda")
    values, scales = quantize_inputs(x)
    want = x / scales[:6].repeat_interleave(128, 1)[:, :320]
    torch.testing.assert_close(values[:6].float(), want, rtol=2**-4, atol=2**-10)


def test_zeros_stay_zeros():
    assert not rounded(torch.zeros(2, 128, device=DEVICE)).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("rows", "columns"), [(5, 96), (3, 640), (2, 1536), pytest.param(2048, 4096, marks=pytest.mark.gpu)]
)
def test_norms_and_gates_are_rounded_as_in_separate_launches(rows, columns, dtype):
    x = (torch.randn(rows, 2 * columns) * 4).to(dtype).to(DEVICE)
    weight = torch.rand(columns).to(dtype).to(DEVICE)
    half = x[:, columns:]
    pairs = [
        (quantize_norm(half, weight, 1e-5), quantize_inputs(rms_norm(half, weight, 1e-5))),
        (quantize_gated(x), quantize_inputs(silu_mul(x))),
    ]
    for fused, separate in pairs:
        assert fused[0].shape == separate[0].shape and fused[1].stride() == separate[1].stride()
        for ours, theirs in zip(fused, separate, strict=True):
            assert torch.equal(ours[:rows].float(), theirs[:rows].float())


def test_only_blocks_of_128_are_served():
    weight = quantize(torch.randn(256, 512))
    assert not serves(torch.zeros(1, 512), weight) and not serves(torch.zeros(1, 512), weight.values)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [9, 64, 130, 2048])
@pytest.mark.parametrize(("rows", "columns"), [(2112, 7168), (4096, 2048), (1024, 1536)])
def test_products_equal_float64(tokens, rows, columns):
    weight = quantize(torch.randn(rows, columns, device="cuda") * columns**-0.5)
    x, bias = torch.randn(tokens, columns, device="cuda").bfloat16(), torch.randn(rows, device="cuda").bfloat16()
    assert serves(x, weight)
    want = rounded(x) @ weight.dequantize(torch.float32).double().T + bias
    assert (
        (fp8_linear(quantize_inputs(x), weight, tokens, x.dtype, bias) - want).abs() / want.abs().clamp(min=1)
    ).max() < 3e-2

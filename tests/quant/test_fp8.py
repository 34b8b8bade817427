"""FP8 blocks against float64, and every value of e4m3 against its definition."""

import math

import pytest
import torch

from genwright.quant.fp8 import BLOCK, LARGEST, VALUES, Fp8Blocks, quantize, quantize_rows, scales_shape

SHAPES = ((128, 128), (384, 256), (576, 7168), (200, 300), (1, 1))


def matrix(shape: tuple[int, int]) -> torch.Tensor:
    """Normal values whose magnitude differs between blocks."""
    torch.manual_seed(0)
    rows, columns = (torch.arange(size) // BLOCK for size in shape)
    return torch.randn(shape) * 2.0 ** ((rows[:, None] + 3 * columns) % 7 - 10)


def test_values_are_e4m3() -> None:
    for byte in range(256):
        sign, exponent, mantissa = -1 if byte & 128 else 1, byte >> 3 & 15, byte & 7
        if exponent == 15 and mantissa == 7:
            continue  # not a number
        wanted = mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2 ** (exponent - 7)
        value = torch.tensor([[byte]], dtype=torch.uint8).view(VALUES)
        assert Fp8Blocks(value, torch.tensor([[3.0]])).dequantize(torch.float64).item() == sign * wanted * 3


@pytest.mark.parametrize("scale_fmt", [None, "ue8m0"])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_block_has_its_own_scale(shape, scale_fmt) -> None:
    weight = matrix(shape)
    packed = quantize(weight, scale_fmt)
    assert packed.shape == shape and packed.scales.shape == scales_shape(shape)
    wide = packed.dequantize(torch.float32)
    for i in range(0, shape[0], BLOCK):
        for j in range(0, shape[1], BLOCK):
            block, scale = weight[i : i + BLOCK, j : j + BLOCK], packed.scales[i // BLOCK, j // BLOCK].item()
            fraction, largest = math.frexp(scale)[0], block.abs().max().item()
            assert largest / LARGEST <= scale * (1 + 1e-6)
            assert fraction == 0.5 if scale_fmt else scale == pytest.approx(max(largest, 1e-4) / LARGEST)
            error = (wide[i : i + BLOCK, j : j + BLOCK] - block).abs()
            assert (error <= block.abs() / 16 + scale * 2**-10).all(), "half of the last of four binary places"


def test_each_row_has_the_best_of_eight_scales() -> None:
    weight = matrix((40, 300))
    weight[3] = 0
    packed = quantize_rows(weight)
    error = (packed.dequantize(torch.float64) - weight.double()).square().sum(dim=1)
    for row, scale, lost in zip(weight, packed.scales[:, 0], error, strict=True):
        least = max(row.abs().max().item(), 1e-10) / LARGEST
        scales = [least * 2 ** (i / 8) for i in range(8)]
        others = [((row / one).to(VALUES).double() * one - row.double()).square().sum() for one in scales]
        assert min(abs(scale.item() / one - 1) for one in scales) < 1e-6
        assert lost <= min(others) * (1 + 1e-5)
    largest = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-10) / LARGEST
    plain = (weight / largest).to(VALUES).double() * largest
    assert error.sum() < 0.97 * (plain - weight.double()).square().sum()


@pytest.mark.parametrize("scale_fmt", [None, "ue8m0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_products(shape, dtype, scale_fmt) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    packed = quantize(weight, scale_fmt)
    x = torch.randn(9, shape[1], generator=torch.Generator().manual_seed(2)).to(dtype)
    got, bias = packed.linear(x).double(), torch.randn(shape[0]).to(dtype)
    exact = x.double() @ packed.dequantize(torch.float64).T
    assert (got - exact).norm() / exact.norm() < (1e-2 if dtype == torch.bfloat16 else 1e-6)
    unquantized = x.double() @ weight.double().T
    assert (got - unquantized).norm() / unquantized.norm() < 4e-2
    torch.testing.assert_close(packed.linear(x, bias).double(), got + bias, rtol=2e-2, atol=2e-2)


def test_a_stack_equals_its_matrices() -> None:
    weight = matrix((512, 256))
    packed, wide = quantize(weight), quantize(weight).dequantize(torch.float32)
    stack = packed.unflatten(0, (2, -1))
    assert torch.equal(stack[1].dequantize(torch.float32), wide[256:])
    chosen = stack[torch.tensor([1, 0, 1])].dequantize(torch.float32)
    assert torch.equal(chosen, torch.stack((wide[256:], wide[:256], wide[256:])))
    assert [tensor.dtype for tensor in packed.tensors().values()] == [VALUES, torch.float32]

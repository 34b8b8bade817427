"""The norm and the gate against float64, and against plain torch's rounding."""

import pytest
import torch
from torch.nn.functional import silu

from genwright.kernels.triton.elementwise import rms_norm, silu_mul, take_rows
from genwright.text.ops import norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter truncates to bf16, while a GPU rounds.
DTYPES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
SIZES = [
    (1, 64),
    (3, 577),
    pytest.param(2048, 4096, marks=pytest.mark.gpu),
    pytest.param(5, 12288, marks=pytest.mark.gpu),
]


def check(out: torch.Tensor, truth: torch.Tensor, rtol: float) -> None:
    """rtol in units of the dtype's eps; atol for float16's subnormals, whose step is 6e-8 times a factor."""
    atol = 2e-6 if out.dtype == torch.float16 else 1e-7
    torch.testing.assert_close(out.double(), truth, rtol=rtol * torch.finfo(out.dtype).eps, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim"), SIZES)
def test_rms_norm(rows, dim, dtype):
    x, weight = (torch.randn(rows, dim) * 3).to(dtype).to(DEVICE), torch.rand(dim).to(dtype).to(DEVICE)
    out = rms_norm(x, weight, 1e-5)
    wide = x.double()
    truth = wide / (wide.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    check(out, truth, rtol=8 if dtype == torch.float32 else 2)
    if dtype != torch.float32:  # sums in another order reach the rounded value seldom
        assert (out != norm.rms_norm(x, weight, 1e-5)).float().mean() < 0.02


def test_rms_norm_of_strided_rows():
    x = torch.randn(4, 3 * 32, device=DEVICE)
    weight = torch.rand(32, device=DEVICE)
    torch.testing.assert_close(rms_norm(x[:, 32:64], weight, 1e-5), norm.rms_norm(x[:, 32:64], weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "dim"), SIZES)
def test_silu_mul(rows, dim, dtype):
    gate_up = (torch.randn(rows, 2 * dim) * 4).to(dtype).to(DEVICE)
    gate, up = gate_up.chunk(2, dim=-1)
    out = silu_mul(gate_up)
    truth = silu(gate.double()) * up.double()
    check(out, truth, rtol=32 if dtype == torch.float32 else 4)  # exp's error grows with its argument
    if dtype != torch.float32:  # whose exponentials differ in the last bit
        assert (out != silu(gate) * up).float().mean() < 0.02


@pytest.mark.parametrize("dim", [64, 577, 4096])
def test_take_rows(dim):
    table = torch.randn(50, dim, device=DEVICE)
    rows = torch.tensor([49, 0, 7, 7], device=DEVICE)
    assert torch.equal(take_rows(rows, table), table[rows])

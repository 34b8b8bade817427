"""Kernels for bit planes: unpacked weights bit for bit, and products against float64, for every type."""

import pytest
import torch
from quant.random_blocks import QUANTIZED, random_weights

from genwright.quant.bit_planes import BitPlanes
from genwright.quant.ggml import TYPES as GGML_TYPES
from genwright.quant.ggml import repack

pytest.importorskip("triton")

from genwright.kernels.triton.bit_planes import grouped_planes_matmul, planes_matmul, unpack_planes
from genwright.kernels.triton.grouped_matmul import group_pairs

NAMES = [name for name in QUANTIZED if name not in ("Q4_0", "Q4_1", "Q8_0")]
GPU = torch.cuda.is_available()
# The interpreter has no bfloat16 arithmetic.
TYPES = {torch.float32: 3e-6 if GPU else 1e-6, torch.float16: 8e-4} | ({torch.bfloat16: 5e-3} if GPU else {})


def planes(name: str, rows: int, columns: int, device: str) -> BitPlanes:
    packed = repack(random_weights(QUANTIZED[name], rows, columns, rows).to(device), QUANTIZED[name])
    assert isinstance(packed, BitPlanes)
    return packed


def sizes(name: str) -> list[tuple[int, int]]:
    """Rows and columns, with the narrowest that a type has."""
    odd = [(37, 768), (17, 3 * GGML_TYPES[QUANTIZED[name]].elements)]
    return odd + ([(4096, 4096), (1030, 14336)] if GPU else [])


@pytest.mark.parametrize("name", NAMES)
def test_unpacked_weights_and_rows_have_the_bits_of_dequantize(name, device):
    for rows, columns in sizes(name):
        weight = planes(name, rows, columns, device)
        for dtype in TYPES:
            wide = weight.dequantize(dtype)
            assert torch.equal(unpack_planes(weight, dtype), wide)
            some = torch.tensor([rows - 1, 0, 5, 5], device=device)
            assert torch.equal(unpack_planes(weight, dtype, some), wide[some])


@pytest.mark.parametrize("name", NAMES)
def test_products_equal_float64(name, device):
    for rows, columns in sizes(name):
        weight, bias = planes(name, rows, columns, device), torch.randn(rows, device=device)
        for tokens, dtype in [(9, torch.float32), (20, torch.float16)] + [(64, d) for d in TYPES if GPU]:
            x = torch.randn(tokens, columns, device=device).to(dtype)
            want = x.double() @ weight.dequantize(torch.float32).double().T + bias.to(dtype).double()
            got = planes_matmul(x, weight, bias.to(dtype))
            assert (got.double() - want).norm() < TYPES[dtype] * want.norm()


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "IQ4_NL"])
def test_a_rows_bits_do_not_depend_on_the_others(name, device):
    weight = planes(name, 48, 512, device)
    x = torch.randn(35, 512, device=device).to(torch.bfloat16 if GPU else torch.float16)
    together = planes_matmul(x, weight, deterministic=True)
    for row in (0, 17, 34):
        assert torch.equal(planes_matmul(x[row : row + 1], weight, deterministic=True)[0], together[row])


@pytest.mark.parametrize("name", ["Q2_K", "Q4_K", "Q6_K"])
def test_pairs_of_tokens_and_experts(name, device):
    stack = planes(name, 3 * 40, 256, device).unflatten(0, (3, 40))
    wide = stack.dequantize(torch.float32).double()
    ids = torch.rand(21, 3, device=device).topk(2).indices
    x = torch.randn(21, 256, device=device)
    got = grouped_planes_matmul(x, stack, group_pairs(ids, 3), share=14).unflatten(0, ids.shape)
    want = torch.einsum("tkne,te->tkn", wide[ids], x.double())
    assert (got.double() - want).norm() < TYPES[torch.float32] * want.norm()
    pairs = torch.randn(42, 256, device=device)  # a row for each pair
    got = grouped_planes_matmul(pairs, stack, group_pairs(ids, 3), share=14)
    want = torch.einsum("pne,pe->pn", wide[ids.flatten()], pairs.double())
    assert (got.double() - want).norm() < TYPES[torch.float32] * want.norm()

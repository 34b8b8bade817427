"""Products of pairs of token and expert, against float64 and for every weight format."""

import pytest
import torch
from torch.nn.functional import silu

from genwright.kernels.triton.grouped_matmul import GroupedTiles, group_pairs, grouped_matmul
from genwright.quant.formats import parse_format

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter treats bf16 as 16-bit integers in tl.dot, so bf16 is only tested on a GPU.
BOUND = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(1, 2, 4), (9, 3, 7), (700, 2, 5)])
def test_pairs_are_grouped_in_their_own_order(tokens, top_k, experts):
    ids = torch.rand(tokens, experts).topk(top_k).indices.to(DEVICE)
    ids[ids == 1] = 0  # an expert without pairs
    groups = group_pairs(ids, experts)
    assert groups.order.tolist() == ids.flatten().argsort(stable=True).tolist()
    assert groups.ends.tolist() == ids.flatten().bincount(minlength=experts).cumsum(0).tolist()


def check(tokens, experts, outputs, columns, quant, gate, dtype=torch.float32, tiles=None, top_k=3, by_pair=False):
    torch.manual_seed(tokens)
    dense = torch.randn(experts * outputs, columns, device=DEVICE) / columns**0.5
    weight = (dense.to(dtype) if quant is None else parse_format(quant).quantize(dense)).unflatten(0, (experts, -1))
    ids = torch.rand(tokens, experts, device=DEVICE).topk(top_k).indices
    x = torch.randn(tokens * top_k if by_pair else tokens, columns, device=DEVICE).to(dtype)
    y = grouped_matmul(x, weight, group_pairs(ids, experts), -(-tokens * top_k // experts), gate, tiles)
    truth = weight if quant is None else weight.dequantize(torch.float32)
    want = expected(x if by_pair else x.repeat_interleave(top_k, 0), truth, ids.flatten(), gate)
    assert ((y - want).abs() / want.abs().clamp(min=1)).max() < BOUND[dtype]


def expected(x, weight, ids, gate):
    """The products of pairs x [pairs, columns] with their experts' matrices, in float64."""
    want = torch.empty(len(x), weight.shape[1], dtype=torch.float64, device=x.device)
    for expert in ids.unique().tolist():
        want[ids == expert] = x[ids == expert].double() @ weight[expert].double().T
    first, second = want.chunk(2, dim=1)
    return silu(first) * second if gate else want


@pytest.mark.parametrize("quant", [None, "int8", "int8:g64", "int4", "int4:g64:asym", "fp8", "fp8:channel"])
@pytest.mark.parametrize("gate", [False, True])
def test_equals_float64_in_every_format(quant, gate):
    check(11, 5, 256, 128, quant, gate, tiles=GroupedTiles(16, 32, 64, 1, 4))


@pytest.mark.parametrize(("outputs", "columns"), [(24, 40), (70, 136), (96, 100)])
@pytest.mark.parametrize("by_pair", [False, True])
def test_ragged_shapes(outputs, columns, by_pair):
    check(5, 6, outputs, columns, None, True, by_pair=by_pair)


def test_an_expert_with_more_pairs_than_a_tile():
    check(70, 4, 32, 64, None, False, tiles=GroupedTiles(16, 32, 32, 1, 4))


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def test_a_pairs_bits_do_not_depend_on_the_other_pairs(dtype):
    x, ids = torch.randn(40, 96, device=DEVICE).to(dtype), torch.rand(40, 4, device=DEVICE).topk(2).indices
    weight = torch.randn(4, 64, 96, device=DEVICE).to(dtype)
    together = grouped_matmul(x, weight, group_pairs(ids, 4), 1, gate=True).view(40, 2, 32)
    for token in (0, 7, 39):
        alone = grouped_matmul(x[token][None], weight, group_pairs(ids[token][None].contiguous(), 4), 1, gate=True)
        assert torch.equal(alone, together[token])


@pytest.mark.gpu
@pytest.mark.parametrize("quant", [None, "int8", "int8:g128", "int4", "int4:g128:asym", "fp8", "fp8:channel"])
@pytest.mark.parametrize("tokens", [2, 64, 1024])
def test_equals_float64_at_size(quant, tokens):
    check(tokens, 8, 2816, 2048, quant, True, torch.bfloat16)
    check(tokens, 8, 2048, 1408, quant, False, torch.bfloat16, by_pair=True)

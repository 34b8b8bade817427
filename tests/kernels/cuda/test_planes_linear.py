"""The CUDA kernel for bit planes against float64, for every GGUF type, including odd sizes."""

import pytest
import torch
from kernels.products import SMALL
from quant.random_blocks import QUANTIZED, random_weights

from genwright.kernels.cuda.planes_linear import SLICE, Tiling, planes_product, serves, shared_bytes, tiling
from genwright.quant.bit_planes import CHUNK, BitPlanes
from genwright.quant.ggml import TYPES, repack

NAMES = [name for name in QUANTIZED if name not in ("Q4_0", "Q4_1", "Q8_0")]
SHAPES = [(37, 768), (130, 1536), (20, 4096)] if SMALL else [(37, 768), (1030, 1536), (520, 4096), (64, 11008)]
BOUNDS = {torch.float32: 3e-4, torch.float16: 1e-3, torch.bfloat16: 4e-3}


def planes(device: str, name: str, rows: int, columns: int) -> BitPlanes:
    packed = repack(random_weights(QUANTIZED[name], rows, columns, rows).to(device), QUANTIZED[name])
    assert isinstance(packed, BitPlanes)
    return packed


def exact(x, weight, norm=None, eps=0.0, bias=None, residual=None, gate=False):
    x = x.double()
    if norm is not None:
        x = x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + eps) * norm.double()
    y = x @ weight.dequantize(torch.float32).double().T
    if bias is not None:
        y = y + bias.double()
    if gate:
        first, second = y.chunk(2, dim=1)
        y = first * first.sigmoid() * second
    return y if residual is None else y + residual.double()


def check(device, name, rows, columns, tokens, gate, dtype=torch.bfloat16, tiles: Tiling | None = None) -> None:
    weight = planes(device, name, rows * (2 if gate else 1), columns)
    x = torch.randn(tokens, columns, device=device, dtype=dtype) * 3
    around = {
        "norm": torch.rand(columns, device=device, dtype=dtype) + 0.5 if gate else None,
        "eps": 1e-5,
        "bias": torch.randn(weight.shape[0], device=device, dtype=dtype),
        "residual": None if gate else torch.randn(tokens, rows, device=device, dtype=dtype),
        "gate": gate,
    }
    if not serves(x, weight):
        pytest.skip("x takes more than the shared memory")
    got, want = planes_product(x, weight, **around, tiles=tiles), exact(x, weight, **around)
    assert (got.double() - want).norm() < BOUNDS[dtype] * want.norm()


@pytest.mark.parametrize("tokens", [1, 2, 8])
@pytest.mark.parametrize("name", NAMES)
def test_every_type_equals_float64(device, name, tokens):
    for rows, columns in [*SHAPES[:3], (19, 5 * TYPES[QUANTIZED[name]].elements)]:
        check(device, name, rows, columns, tokens, gate=tokens == 2)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("gate", [False, True])
def test_types_and_shapes(device, gate, dtype):
    for name in ("Q4_K", "Q6_K"):
        for shape in SHAPES:
            for tokens in (1, 3):
                check(device, name, *shape, tokens, gate, dtype)


@pytest.mark.parametrize("tiles", [Tiling(16, 1, 2, 2), Tiling(8, 4, 4, 2), Tiling(4, 2, 8, 4)], ids=str)
def test_other_tilings(device, tiles):
    check(device, "Q5_K", 130, 4096, 1, False, tiles=tiles)
    check(device, "Q3_K", 130, 4096, 2, True, tiles=tiles)


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("name", ["Q2_K", "Q4_K", "Q6_K", "IQ4_XS"])
def test_each_token_selects_matrices_of_a_stack(device, name, tokens):
    stack = planes(device, name, 6 * 256, 1024).unflatten(0, (6, 256))
    x = torch.randn(tokens, 1024, device=device, dtype=torch.bfloat16)
    ids = torch.rand(tokens, 6, device=device).topk(3).indices
    for gate in (False, True):
        got = planes_product(x, stack, experts=ids, gate=gate).unflatten(0, ids.shape)
        for token, chosen in enumerate(ids.tolist()):
            for place, expert in enumerate(chosen):
                want = exact(x[token : token + 1], stack[expert], gate=gate)
                assert (got[token, place].double() - want[0]).norm() < 4e-3 * want.norm()


def test_large_values_zeros_and_nan(device):
    weight = planes(device, "Q4_K", 64, 1024)
    x = torch.randn(3, 1024, device=device, dtype=torch.bfloat16)
    x[0] *= 1e30
    x[1] *= 1e-30
    x[2] = 0
    got, want = planes_product(x, weight), exact(x, weight)
    assert torch.equal(got[2], torch.zeros(64, device=device, dtype=torch.bfloat16))
    for row in range(2):
        assert (got[row].double() - want[row]).norm() < 4e-3 * want[row].norm()
    x[0, 5] = torch.nan
    assert planes_product(x, weight)[0].isnan().all()


@pytest.mark.parametrize("columns", [32, 96, 576, 1536, 2048, 4096, 8960, 11008, 14336, 28672])
def test_a_tiling_covers_a_row_and_little_more(columns):
    weight = planes("cpu", "Q5_0", 1, columns)
    for tokens in (1, 8):
        tiles = tiling(columns, tokens)
        covered = tiles.warps * tiles.turns * SLICE * CHUNK
        assert tiles.warps <= 16 and tiles.turns % tiles.depth == 0
        assert columns <= covered < columns + tiles.turns * SLICE * CHUNK + SLICE * CHUNK
        assert shared_bytes(weight, tokens, tiles) >= tokens * covered * 2

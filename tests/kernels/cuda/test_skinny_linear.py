"""The skinny GEMM against float64: every packed format, 2 to 64 tokens, odd sizes, and tiles that blocks share."""

from dataclasses import replace

import pytest
import torch

from genwright.kernels.cuda.fused_linear import Operand, operand
from genwright.kernels.cuda.skinny_linear import MAX_ROWS, Scratch, SkinnyTiling, n_tiles, skinny_linear, stage_bytes
from genwright.kernels.cuda.tilings import SHARED, SKINNY
from genwright.quant.formats import parse_format

FORMATS = ["int8", "int8:g32", "int4", "int4:g64:asym", "int4:g128", "fp8", "fp8:channel"]
SHAPES = [(37, 576), (1030, 1536), (520, 4096)]
TILINGS = sorted(set(SKINNY.values()), key=str)
OTHERS = [SkinnyTiling(64, 2, 256, 2), SkinnyTiling(128, 2, 128, 3, 2), SkinnyTiling(512, 1, 128, 3)]


def fits(name: str, columns: int) -> bool:
    return name != "int4:g128" or columns % 128 == 0


def fitting(weight: Operand, tokens: int, tiles: SkinnyTiling | None = None) -> SkinnyTiling:
    """A tiling, by default int4's, with as many of its stages as shared memory has room for."""
    tiles = tiles or SKINNY[n_tiles(tokens)]
    return replace(tiles, stages=min(tiles.stages, SHARED // stage_bytes(weight, tokens, tiles)))


def check(name, outputs, columns, tokens, gate=False, dtype=torch.bfloat16, tiles=None, repeats=1):
    rows = outputs * (2 if gate else 1)
    weight = parse_format(name).quantize(torch.randn(rows, columns, device="cuda") * columns**-0.5)
    x = torch.randn(tokens, columns, device="cuda", dtype=dtype) * 3
    bias = torch.randn(rows, device="cuda", dtype=dtype)
    residual = None if gate else torch.randn(tokens, outputs, device="cuda", dtype=dtype)
    known, scratch = operand(weight), Scratch.allocate(tokens, x.device)
    tiles = fitting(known, tokens, tiles)
    results = [skinny_linear(x, known, tiles, scratch, bias=bias, residual=residual, gate=gate) for _ in range(repeats)]
    want = x.double() @ weight.dequantize(torch.float32).double().T + bias.double()
    if gate:
        first, second = want.chunk(2, dim=1)
        want = first * first.sigmoid() * second
    want = want if residual is None else want + residual.double()
    error = ((results[0].double() - want).norm() / want.norm()).item()
    # 2.7e-3 where weights are scaled in bf16, else 1.7e-3; a gate adds the errors of two products
    assert error < (1e-3 if dtype == torch.float16 else 7e-3 if gate else 4e-3)
    assert all(torch.equal(result, results[0]) for result in results)
    assert not scratch.arrivals.any()


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [2, 8, 9, 16, 31, 64])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_and_size(name, tokens):
    for shape in SHAPES:
        if fits(name, shape[1]):
            check(name, *shape, tokens)
    check(name, 1000, 1536, tokens, gate=True)


@pytest.mark.gpu
def test_a_row_that_ends_inside_the_columns_of_a_shared_scale():
    check("fp8", 96, 1056, 16)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
def test_float16(name):
    check(name, 520, 1536, 16, dtype=torch.float16)
    check(name, 96, 1536, 33, gate=True, dtype=torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", [*TILINGS, *OTHERS], ids=str)
@pytest.mark.parametrize("name", ["int4:asym", "fp8"])
def test_every_tiling(name, tiles):
    """The same bits again and again: shared tiles are summed in the order of the blocks."""
    for tokens in (16, 64):
        if fitting(operand(parse_format(name).quantize(torch.zeros(16, 512))), tokens, tiles).stages > 1:
            check(name, 4096, 4096, tokens, tiles=tiles, repeats=5)


@pytest.mark.gpu
def test_launches_in_a_graph_keep_their_order():
    """Programmatic dependent launch: each product reads the one before, and the scratch is reused at once."""
    tokens, size = 16, 2048
    weights = [parse_format("int4").quantize(torch.randn(size, size, device="cuda") * size**-0.5) for _ in range(6)]
    scratch = Scratch.allocate(tokens, torch.device("cuda"))
    x = torch.randn(tokens, size, device="cuda", dtype=torch.bfloat16)

    def chain(dependent: bool) -> torch.Tensor:
        y = x
        for weight in weights:
            known = operand(weight)
            y = skinny_linear(y, known, SKINNY[n_tiles(tokens)], scratch, residual=y, dependent=dependent)
        return y

    want = chain(dependent=False)
    chain(dependent=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain(dependent=True)
    for _ in range(20):
        graph.replay()
        assert torch.equal(got, want)


@pytest.mark.gpu
def test_large_values_and_nan():
    weight = parse_format("int4").quantize(torch.randn(64, 1024, device="cuda"))
    known, scratch = operand(weight), Scratch.allocate(9, torch.device("cuda"))
    x = torch.randn(9, 1024, device="cuda", dtype=torch.bfloat16)
    x[0] *= 1e30
    x[1] *= 1e-30
    x[2] = 0
    want = x.double() @ weight.dequantize(torch.float32).double().T
    x[3, 5] = torch.nan
    got = skinny_linear(x, known, SKINNY[n_tiles(9)], scratch)
    assert not got[2].any() and got[3].isnan().all()
    for row in (0, 1, *range(4, 9)):
        assert (got[row].double() - want[row]).norm() < 5e-3 * want[row].norm()


def test_kernels_are_compiled_for_powers_of_two():
    assert [n_tiles(tokens) for tokens in (1, 8, 9, 16, 17, 32, 33, 64)] == [1, 1, 2, 2, 4, 4, 8, 8]


@pytest.mark.parametrize("name", ["int4", "int4:asym", "int4:g128"])
def test_the_tilings_fit(name):
    weight = operand(parse_format(name).quantize(torch.zeros(16, 128)))
    for tokens in (8, 16, 32, 64):
        tiles = SKINNY[n_tiles(tokens)]
        assert tiles.threads // 32 * 16 * tiles.m_tiles * tiles.blocks <= MAX_ROWS
        assert tiles.k_tile % 128 == 0 and tiles.stages >= 2
        assert fitting(weight, tokens) == tiles


def test_a_stage_holds_weights_scales_and_x():
    weight = operand(parse_format("int4").quantize(torch.zeros(16, 512)))
    tiles = SkinnyTiling(256, 1, 128, 6)
    assert stage_bytes(weight, 16, tiles) == 128 * 64 + 2 * 256 * 4 + 16 * 128 * 2

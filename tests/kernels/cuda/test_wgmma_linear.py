"""Packed weights and 17 to 64 tokens against float64: every format, odd sizes, and tiles that blocks share."""

import pytest
import torch
from kernels.products import (
    SMALL,
    check_all,
    check_large_values_and_nan,
    check_order_of_launches,
    check_streams_at_once,
    in_float64,
)

from genwright.kernels.cuda.fused_linear import Operand, operand
from genwright.kernels.cuda.tilings import MANY_ROWS, wgmma_team_rows
from genwright.kernels.cuda.wgmma_linear import FLAGS, TEAM_ROWS, n_tiles, new_scratch, serves, wgmma_linear
from genwright.quant.formats import parse_format

FORMATS = ["int8", "int8:g32", "int4", "int4:g64:asym", "int4:g128"]
SHAPES = [(37, 576), (1030, 1536), (520, 4096), (24, 14336)]
SMALL_SHAPES = [(37, 576), (330, 1536), (24, 4096)]


def check(device, name, outputs, columns, tokens, gate=False, dtype=torch.bfloat16, team_rows=128, repeats=1):
    rows = outputs * (2 if gate else 1)
    weight = parse_format(name).quantize(torch.randn(rows, columns, device=device, dtype=dtype) * columns**-0.5)
    x = torch.randn(tokens, columns, device=device, dtype=dtype) * 3
    bias = torch.randn(rows, device=device, dtype=dtype)
    residual = None if gate else torch.randn(tokens, outputs, device=device, dtype=dtype)
    known, scratch = operand(weight), new_scratch(x.device)
    assert serves(x, known)
    results = [
        wgmma_linear(x, known, scratch, team_rows=team_rows, bias=bias, residual=residual, gate=gate)
        for _ in range(repeats)
    ]
    want = in_float64(x, weight.dequantize(torch.float32), bias, residual, gate)
    error = ((results[0].double() - want).norm() / want.norm()).item()
    # 2.7e-3 where weights are scaled in bf16, else 1.7e-3; a gate adds the errors of two products
    assert error < (1e-3 if dtype == torch.float16 else 7e-3 if gate else 4e-3)
    assert all(torch.equal(result, results[0]) for result in results)
    assert not scratch[:FLAGS].any()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_and_size(device, name):
    shapes, gated = (SMALL_SHAPES, 150) if SMALL else (SHAPES, 1000)
    sizes = [{"outputs": n, "columns": k} for n, k in shapes if name != "int4:g128" or k % 128 == 0]
    sizes.append({"outputs": gated, "columns": 1536, "gate": True})
    counts = (2, 31, 64) if SMALL else (2, 17, 31, 32, 33, 64)
    check_all(check, ({"device": device, "name": name, "tokens": count, **size} for count in counts for size in sizes))


@pytest.mark.parametrize("name", FORMATS)
def test_float16(device, name):
    check(device, name, 520, 1536, 32, dtype=torch.float16)
    check(device, name, 96, 1536, 33, gate=True, dtype=torch.float16)


@pytest.mark.parametrize("name", ["int8", "int4", "int4:asym"])
def test_teams_of_64_and_128_rows(device, name):
    """The same bits again and again: shared tiles are summed in the order of the blocks."""
    outputs, columns, repeats = (300, 1536, 2) if SMALL else (4096, 4096, 5)
    given = {"device": device, "name": name, "outputs": outputs, "columns": columns, "repeats": repeats}
    check_all(check, ({**given, "team_rows": rows, "tokens": count} for rows in TEAM_ROWS for count in (32, 64)))


@pytest.mark.parametrize(
    "name", ["int8:g16", "int8:g128", "int8:g256", "int4:g32:f32", "int4:g32:asym:f32", "int4:g256", "int4:g512"]
)
def test_scales_of_any_number_and_type(device, name):
    """1 to 16 scales of a row in a stage, or one for several; rows that end within a stage."""
    outputs, repeats = (150, 1) if SMALL else (1000, 3)
    for columns in (2048, 2560) if SMALL else (4096, 5632):
        check(device, name, outputs, columns, 33, repeats=repeats)


def test_launches_keep_their_order(device):
    scratch = new_scratch(torch.device(device))

    def product(x: torch.Tensor, weight: Operand, dependent: bool) -> torch.Tensor:
        return wgmma_linear(x, weight, scratch, team_rows=64, residual=x, dependent=dependent)

    check_order_of_launches(device, 24, 512 if SMALL else 2048, product)


@pytest.mark.gpu
def test_three_streams_at_once():
    tokens, size = 24, 4096
    known = operand(parse_format("int4").quantize(torch.randn(size, size, device="cuda") * size**-0.5))
    x = torch.randn(tokens, size, device="cuda", dtype=torch.bfloat16)
    scratches = [new_scratch(x.device) for _ in range(3)]
    check_streams_at_once(lambda scratch: wgmma_linear(x, known, scratch, team_rows=64), scratches)


def test_large_values_and_nan(device):
    scratch = new_scratch(torch.device(device))
    check_large_values_and_nan(device, lambda x, weight: wgmma_linear(x, weight, scratch, team_rows=64))


def test_which_products_the_kernel_takes(hopper):
    x, wide = torch.zeros(65, 1024, dtype=torch.bfloat16), torch.zeros(MANY_ROWS, 1024)
    many, few = (operand(parse_format("int4").quantize(each)) for each in (wide, wide[:4096]))
    found = [wgmma_team_rows(many, x[:tokens]) for tokens in (16, 17, 64, 65)]
    assert found == [None, 128, 128, None] and wgmma_team_rows(few, x[:64]) == 64
    assert wgmma_team_rows(operand(parse_format("int8").quantize(wide)), x[:64]) == 128
    assert wgmma_team_rows(operand(wide.bfloat16()), x[:64]) is None
    assert [n_tiles(tokens) for tokens in (1, 32, 33, 64)] == [4, 4, 8, 8]


@pytest.mark.parametrize(
    ("name", "columns", "served"),
    [("int4:g96", 2304, False), ("int4:g512", 2048, True), ("int4:g128", 2816, True), ("int8:g48", 2304, False)],
)
def test_a_stage_is_whole_groups_or_a_group_whole_stages(name, columns, served, hopper):
    weight = operand(parse_format(name).quantize(torch.zeros(16, columns)))
    assert serves(torch.zeros(16, columns, dtype=torch.bfloat16), weight) is served

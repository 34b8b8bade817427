"""The skinny GEMM against float64: every format, 2 to 32 tokens, odd sizes, and tiles that blocks share."""

from dataclasses import replace

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
from genwright.kernels.cuda.skinny_linear import (
    MAX_ROWS,
    NOTHING,
    SkinnyTiling,
    n_tiles,
    new_scratch,
    serves,
    shared_bytes,
    skinny_linear,
)
from genwright.kernels.cuda.tilings import MANY_ROWS, SKINNY, SKINNY_INT8, SKINNY_PLAIN, skinny_tiling
from genwright.quant.formats import parse_format
from genwright.quant.packed import Weight

ROOM = 228 << 10  # bytes of shared memory of a Hopper GPU's multiprocessor; a block takes 1,024 more than it asks for
FORMATS = ["plain", "int8", "int8:g32", "int4", "int4:g64:asym", "int4:g128"]
SHAPES = [(37, 576), (1030, 1536), (520, 4096), (24, 14336)]
SMALL_SHAPES = [(37, 576), (330, 1536), (24, 4096)]
TILINGS = sorted({SKINNY_INT8, *SKINNY_PLAIN.values(), *(tiles for each in SKINNY.values() for tiles in each)}, key=str)
OTHERS = [SkinnyTiling(128, 2, 256, 3), SkinnyTiling(128, 2, 128, 4, 1), SkinnyTiling(128, 1, 512, 3, 2)]


def quantized(name: str, weight: torch.Tensor) -> Weight:
    return weight if name == "plain" else parse_format(name).quantize(weight)


def fitting(weight: Operand, tokens: int, tiles: SkinnyTiling) -> SkinnyTiling:
    """A tiling with as many of its stages as shared memory has room for, and fewer columns if it has room for one."""
    while shared_bytes(weight, tokens, tiles) > ROOM // tiles.blocks - 1024:
        fewer = {"stages": tiles.stages - 1} if tiles.stages > 3 else {"k_tile": tiles.k_tile // 2}
        tiles = replace(tiles, **fewer)
    return tiles


def check(device, name, outputs, columns, tokens, gate=False, dtype=torch.bfloat16, tiles=None, repeats=1):
    rows = outputs * (2 if gate else 1)
    weight = quantized(name, torch.randn(rows, columns, device=device, dtype=dtype) * columns**-0.5)
    x = torch.randn(tokens, columns, device=device, dtype=dtype) * 3
    bias = torch.randn(rows, device=device, dtype=dtype)
    residual = None if gate else torch.randn(tokens, outputs, device=device, dtype=dtype)
    known, scratch = operand(weight), new_scratch(tokens, x.device)
    usual = (SKINNY_PLAIN[n_tiles(tokens)],) if name == "plain" else SKINNY[n_tiles(tokens)]
    found = [fitting(known, tokens, each) for each in ([tiles] if tiles else usual)]
    served = [each for each in found if serves(x, known, each)]
    if not served:
        assert known.group >= 32  # scales in half words, or no room for whole groups
        return
    results = [
        skinny_linear(x, known, served[0], scratch, bias=bias, residual=residual, gate=gate) for _ in range(repeats)
    ]
    wide = weight if name == "plain" else weight.dequantize(torch.float32)
    want = in_float64(x, wide, bias, residual, gate)
    error = ((results[0].double() - want).norm() / want.norm()).item()
    # 2.7e-3 where weights are scaled in bf16, else 1.7e-3; a gate adds the errors of two products
    assert error < (1e-3 if dtype == torch.float16 else 7e-3 if gate else 4e-3)
    assert all(torch.equal(result, results[0]) for result in results)
    assert (scratch == NOTHING).all()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_and_size(device, name):
    shapes, gated = (SMALL_SHAPES, 150) if SMALL else (SHAPES, 1000)
    sizes = [{"outputs": n, "columns": k} for n, k in shapes if name != "int4:g128" or k % 128 == 0]
    sizes.append({"outputs": gated, "columns": 1536, "gate": True})
    counts = (*((2, 9) if SMALL else (2, 8, 9, 16)), *((31,) if name == "plain" else ()))
    check_all(check, ({"device": device, "name": name, "tokens": count, **size} for count in counts for size in sizes))


@pytest.mark.parametrize("name", FORMATS)
def test_float16(device, name):
    check(device, name, 520, 1536, 16, dtype=torch.float16)
    check(device, name, 96, 1536, 9, gate=True, dtype=torch.float16)


@pytest.mark.parametrize("name", ["plain", "int8", "int4", "int4:asym"])
def test_every_tiling(device, name):
    """The same bits again and again: shared tiles are summed in the order of the blocks."""
    outputs, columns, repeats = (300, 1536, 2) if SMALL else (4096, 4096, 5)
    given = {"device": device, "name": name, "outputs": outputs, "columns": columns, "repeats": repeats}
    check_all(check, ({**given, "tiles": tiles, "tokens": count} for tiles in (*TILINGS, *OTHERS) for count in (8, 16)))


def test_launches_keep_their_order(device):
    tokens = 16
    tiles, scratch = SKINNY[n_tiles(tokens)][0], new_scratch(tokens, torch.device(device))

    def product(x: torch.Tensor, weight: Operand, dependent: bool) -> torch.Tensor:
        return skinny_linear(x, weight, tiles, scratch, residual=x, dependent=dependent)

    check_order_of_launches(device, tokens, 512 if SMALL else 2048, product)


@pytest.mark.gpu
def test_three_streams_at_once():
    tokens, size = 16, 4096
    known = operand(parse_format("int4").quantize(torch.randn(size, size, device="cuda") * size**-0.5))
    x = torch.randn(tokens, size, device="cuda", dtype=torch.bfloat16)
    scratches = [new_scratch(tokens, x.device) for _ in range(3)]
    check_streams_at_once(lambda scratch: skinny_linear(x, known, SKINNY[n_tiles(tokens)][0], scratch), scratches)


def test_large_values_and_nan(device):
    scratch = new_scratch(9, torch.device(device))
    check_large_values_and_nan(device, lambda x, weight: skinny_linear(x, weight, SKINNY[n_tiles(9)][0], scratch))
    assert (scratch == NOTHING).all()


def test_no_nan_is_taken_for_a_sum_that_is_missing(device):
    """Weights and inputs whose bits are all ones, as those of memory without a sum."""
    weight = torch.randn(64, 1024, device=device, dtype=torch.bfloat16)
    x = torch.randn(8, 1024, device=device, dtype=torch.bfloat16)
    weight.view(torch.int16)[3, ::7] = -1
    x.view(torch.int16)[2, ::5] = -1
    scratch = new_scratch(8, x.device)
    got = skinny_linear(x, operand(weight), SKINNY_PLAIN[1], scratch)
    assert torch.equal(got.isnan(), (x.double() @ weight.double().T).isnan())
    assert (scratch == NOTHING).all()


def test_kernels_are_compiled_for_powers_of_two():
    assert [n_tiles(tokens) for tokens in (1, 8, 9, 16, 17, 32)] == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize("name", ["int4", "int4:asym", "int4:g128"])
def test_the_tilings_fit(name):
    weight = operand(parse_format(name).quantize(torch.zeros(16, 1024)))
    for tokens in (8, 16):
        for tiles in SKINNY[n_tiles(tokens)]:
            assert tiles.rows * tiles.blocks <= MAX_ROWS and tiles.k_tile % 128 == 0 and tiles.stages >= 3
            assert fitting(weight, tokens, tiles) == tiles


def test_a_block_holds_stages_of_weights_scales_and_x_and_sums():
    weight = operand(parse_format("int4").quantize(torch.zeros(16, 512)))
    stage, x, sums = 128 * 64 + 128 * 4 * 2, 16 * 128 * 2, 16 * (128 + 4) * 4
    assert shared_bytes(weight, 16, SkinnyTiling(256, 1, 128, 6)) == 6 * stage + sums + 3 * x
    plain = operand(torch.zeros(16, 512, dtype=torch.bfloat16))
    assert shared_bytes(plain, 16, SkinnyTiling(256, 1, 128, 6)) == 6 * (128 * 256 + x) + sums


def test_which_products_the_kernel_takes(hopper):
    x, wide = torch.zeros(64, 1024, dtype=torch.bfloat16), torch.zeros(MANY_ROWS, 1024)
    packed = {name: operand(parse_format(name).quantize(wide)) for name in ("int4", "int4:g256", "int8")}
    assert skinny_tiling(packed["int4"], x[:16]) == SKINNY[2][0]
    assert skinny_tiling(operand(parse_format("int4").quantize(wide[:4096])), x[:16]) == SKINNY[2][1]
    assert skinny_tiling(packed["int4:g256"], x[:16]) == SKINNY[2][1]  # a stage of the first has half a word of scales
    odd = operand(parse_format("int4").quantize(wide[:, :992]))  # 31 scales in a row
    assert skinny_tiling(odd, x[:16, :992]) is None
    assert [skinny_tiling(packed["int8"], x[:tokens]) for tokens in (16, 17)] == [SKINNY_INT8, None]
    plain = operand(wide.bfloat16())
    found = [skinny_tiling(plain, x[:tokens]) for tokens in (1, 2, 8, 9, 32, 33)]
    assert found == [None, *[SKINNY_PLAIN[tiles] for tiles in (1, 1, 2, 4)], None]
    assert skinny_tiling(operand(wide), x[:2]) is None


@pytest.mark.parametrize(
    ("name", "columns", "k_tile", "served"),
    [
        ("int4:g128", 2816, 256, True),
        ("int4:g128", 2880, 256, False),  # 22 groups and a half: a row has an odd number of scales
        ("int4:g256", 2048, 128, False),
        ("int4:g96", 2304, 256, False),
        ("int4:g256", 2048, 512, True),
    ],
)
def test_a_stage_has_whole_groups_and_a_row_whole_words_of_scales(name, columns, k_tile, served, hopper):
    weight = operand(parse_format(name).quantize(torch.zeros(16, columns)))
    x = torch.zeros(16, columns, dtype=torch.bfloat16)
    assert serves(x, weight, SkinnyTiling(256, 1, k_tile, 3)) is served


def test_a_tiling_that_shared_memory_has_no_room_for_is_not_taken(hopper):
    weight = operand(parse_format("int4:asym:f32").quantize(torch.zeros(MANY_ROWS, 512)))
    x = torch.zeros(16, 512, dtype=torch.bfloat16)
    assert [serves(x, weight, SkinnyTiling(256, tiles, 512, 3)) for tiles in (1, 2)] == [True, False]

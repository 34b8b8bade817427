"""Products of weights in tiles: against float64, on each instruction set there is, and look-ups of their rows."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import pad, silu

from genwright.kernels.cpu import build, tile_linear
from genwright.kernels.cpu.amx import cpu_flags
from genwright.kernels.cpu.calls import address, runner
from genwright.kernels.cpu.fused_linear import operand
from genwright.kernels.cpu.tile_linear import look_up, tile_operand
from genwright.quant import ggml
from genwright.quant.formats import parse_format
from genwright.quant.mixed import Mixed
from genwright.quant.packed import Packed
from genwright.quant.tiles import UNIT, Table, Tiles, as_tiles

SIZES = [(1, 1), (3, 5), (4, 16), (7, 31), (64, 64), (97, 333), (130, 1027), (961, 576), (9, 7008)]  # outputs, inputs
INTEGERS = ["int8", "int8:g32", "int4", "int4:g32:asym", "int4:g64:asym", "int4:g128"]
BLOCKS = {block.name: kind for kind, block in ggml.TYPES.items() if block.stored is None}
INSTRUCTIONS = {
    "avx512": "-mno-avx512vnni",
    "avx2": "-mno-avx512f -mno-avxvnni",
    "plain": "-mno-avx2 -mno-avx512f -mno-fma -mno-f16c",
}
# Whether inputs have 8 bits but for a few words; AVX2 and AVX-512 without VNNI multiply 16 bits.
NARROW = bool(cpu_flags() & {"avx512_vnni", "avx_vnni"}) or "avx2" not in cpu_flags()
pytestmark = pytest.mark.skipif(runner() is None, reason="no C++ compiler")


def tiles(name: str, outputs: int, inputs: int) -> Tiles:
    """Random weights in one of INTEGERS, or random bytes in one of BLOCKS."""
    if name in INTEGERS:
        return as_tiles(parse_format(name).quantize(torch.randn(outputs, inputs)))
    block, rng = ggml.TYPES[BLOCKS[name]], np.random.default_rng(outputs)
    blocks = rng.integers(0, 256, (outputs * inputs // block.elements, block.bytes), dtype=np.uint8)
    found = ggml.tiles(torch.from_numpy(blocks).view(outputs, -1), BLOCKS[name])

    def plain_scales(tensor: torch.Tensor) -> torch.Tensor:
        return torch.rand(tensor.shape).to(tensor.dtype) if tensor.is_floating_point() else tensor

    return found.map(plain_scales)


def product(x: torch.Tensor, weight: Packed, exact: bool = False, **fused: Any) -> torch.Tensor:
    found = operand(x, weight)
    assert found is not None
    return found.product(x, exact=exact, **fused)


def steps(x: torch.Tensor, group: int, narrow: bool) -> torch.Tensor:
    """The distance between neighbouring codes of each x, in float64.

    If `narrow`, the two words of four columns with the largest numbers among 32 (or the one among 16) have 16 bits, and
    the others 8.
    """
    group = 16 if group == 16 else UNIT
    padded = pad(x.double().abs(), (0, -x.shape[1] % UNIT)).view(len(x), -1, group)
    words = padded.unflatten(2, (-1, 4)).amax(3).sort(dim=2, descending=True).values
    most = words[..., 0]
    step = torch.maximum(words[..., group // 16] / 127, most / 32639) if narrow else most / 32639
    return step.repeat_interleave(group, 1)[:, : x.shape[1]]


def assert_close(y: torch.Tensor, x: torch.Tensor, weight: Packed, exact: bool = False, narrow: bool = NARROW) -> None:
    wide = weight.dequantize(torch.float32).double()
    error = (y - x.double() @ wide.T).abs()
    most = 1e-6 * (x.double().abs() @ wide.abs().T) + 1e-6
    parts = weight.parts if isinstance(weight, Mixed) else (weight,)
    if not exact:
        groups = [part.group if isinstance(part, Tiles) else UNIT for part in parts]
        rows = wide.abs().split([part.shape[0] for part in parts])
        halves = (steps(x, group, narrow) / 2 @ part.T for group, part in zip(groups, rows, strict=True))
        most = most + 1.0001 * torch.cat(list(halves), 1)
    assert (error <= most).all(), (len(x), weight.shape)
    if not exact and x.shape[1] > 300:  # errors cancel
        assert error.norm() < (1e-2 if narrow else 5e-5) * (x.double() @ wide.T).norm()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", INTEGERS)
def test_products_equal_float64(name: str, exact: bool) -> None:
    torch.manual_seed(0)
    for outputs, inputs in SIZES:
        weight = tiles(name, outputs, inputs)
        for tokens in (1, 2, 7, 8, 9):
            x = torch.randn(tokens, inputs) * torch.rand(inputs)
            assert_close(product(x, weight, exact), x, weight, exact)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_products_of_every_block_type(name: str, exact: bool) -> None:
    torch.manual_seed(0)
    for outputs, inputs in ((1, 256), (37, 512), (130, 1280)):
        weight = tiles(name, outputs, inputs)
        for tokens in (1, 2, 9):
            x = torch.randn(tokens, inputs) * torch.rand(inputs)
            assert_close(product(x, weight, exact), x, weight, exact)


@pytest.mark.parametrize("name", ["int4", "Q6_K"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_epilogue_is_fused(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, norm = tiles(name, 992, 512), torch.rand(512).to(dtype)
    x, bias, residual = (torch.randn(shape).to(dtype) for shape in ((3, 512), (992,), (3, 992)))
    normed = x.double() * torch.rsqrt(x.double().square().mean(dim=1, keepdim=True) + 1e-5) * norm.double()
    y = normed @ weight.dequantize(torch.float32).double().T + bias
    found = operand(x, weight, bias)
    assert found is not None and found.takes_gate()
    most = 1e-2 if dtype == torch.float32 else 2e-2
    gated, expected = found.product(x, bias, norm=norm, eps=1e-5, gate=True, exact=False), silu(y[:, :496]) * y[:, 496:]
    assert (gated - expected).norm() < most * expected.norm()
    added = found.product(x, bias, norm=norm, eps=1e-5, residual=residual, exact=False)
    assert (added - y - residual).norm() < most * y.norm()
    odd = operand(x, tiles(name, 60, 512))
    assert odd is not None and not odd.takes_gate()  # a half ends inside a tile


def test_matrices_of_several_formats() -> None:
    torch.manual_seed(0)
    weight = Mixed(
        (tiles("Q4_K", 40, 512), parse_format("int4:g8").quantize(torch.randn(7, 512)), tiles("Q6_K", 24, 512))
    )
    assert weight.shape == (71, 512)
    same = weight.with_tensors(weight.tensors())
    assert torch.equal(same.dequantize(torch.float32), weight.dequantize(torch.float32))
    x, bias, residual = torch.randn(9, 512), torch.randn(71), torch.randn(9, 71)
    assert_close(product(x, weight), x, weight)
    found = operand(x, weight)
    assert found is not None and not found.takes_gate()
    whole = found.product(x, bias, residual=residual, exact=False)
    torch.testing.assert_close(whole, product(x, weight) + bias + residual)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["int8:g32", "Q4_K", "Q6_K"])
def test_bits_do_not_depend_on_the_batch_or_the_threads(name: str, exact: bool) -> None:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    weight, x = tiles(name, 961, 512), torch.randn(48, 512)
    alone = torch.cat([product(row, weight, exact) for row in x.split(1)])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for tokens in (2, 8, 9, 48):
                assert torch.equal(product(x[:tokens], weight, exact), alone[:tokens])
    finally:
        torch.set_num_threads(threads)


def test_extreme_inputs() -> None:
    """Zeros, one large value, and values that must not become something finite."""
    weight = tiles("int8:g32", 16, 64)
    assert product(torch.zeros(1, 64), weight).eq(0).all()
    one = torch.zeros(1, 64)
    one[0, 40] = 1e30
    assert_close(product(one, weight) / 1e30, one / 1e30, weight)
    for value in (float("nan"), float("inf")):
        one[0, 3] = value
        assert not product(one, weight).isfinite().any()


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_each_instruction_set(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The kernel compiled without the processor's newer instructions."""
    if not cpu_flags() & {"avx2"}:
        pytest.skip("the processor is not an x86-64 with AVX2")
    quick = ["-O1" if flag == "-O3" else flag for flag in build.FLAGS]
    monkeypatch.setattr(build, "FLAGS", (*quick, *INSTRUCTIONS[name].split()))
    monkeypatch.setattr(tile_linear, "kernel", lambda *kind: load(tmp_path, *kind))
    torch.manual_seed(0)
    for kind, inputs in (("int8:g32", 333), ("Q5_K", 512), ("IQ4_XS", 512)):
        weight, x = tiles(kind, 97, inputs), torch.randn(9, inputs)
        limited = tile_operand(weight)
        assert limited is not None
        for exact in (False, True):
            assert_close(limited.product(x, exact=exact), x, weight, exact, narrow=name == "plain")


def emulate_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels be compiled with AMX's instructions in plain C++, because few processors have them."""
    if not cpu_flags() >= {"avx512_vnni", "avx512bw"}:
        pytest.skip("the processor has no AVX-512 with VNNI, which the kernel uses beside AMX")
    emulated = "-D__AMX_INT8__", "-include", str(Path(__file__).with_name("emulated_amx.h"))
    quick = ["-O1" if flag == "-O3" else flag for flag in build.FLAGS]
    monkeypatch.setattr(build, "FLAGS", (*quick, *emulated))


@pytest.mark.parametrize("name", ["int8", "int4:g64:asym", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_amx_gives_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    emulate_amx(monkeypatch)
    monkeypatch.setattr(tile_linear, "kernel", lambda *kind: load(tmp_path, *kind))
    called: list[str] = []
    monkeypatch.setattr(tile_linear, "address", lambda library, part: called.append(part) or address(library, part))
    torch.manual_seed(0)
    outputs, inputs = (97, 333) if name.startswith("int") else (96, 512)
    weight, x, bias = tiles(name, outputs, inputs), torch.randn(75, inputs) * torch.rand(inputs), torch.randn(outputs)
    x[3, 11], x[20] = 1e4, 0
    operands = []
    for amx in (False, True):
        monkeypatch.setattr(tile_linear, "amx_is_faster", lambda *kind, amx=amx: amx)
        operands.append(tile_operand(weight))
    vnni, by_amx = operands
    assert vnni is not None and by_amx is not None
    for tokens in (8, 15, 16, 17, 64, 75):
        some = x[:tokens]
        expected = vnni.product(some, exact=False)
        assert "amx_part" not in called
        y = by_amx.product(some, exact=False)
        assert ("amx_part" in called) == (tokens >= tile_linear.MANY)
        assert torch.equal(y, expected)
        assert_close(y, some, weight, narrow=True)
        called.clear()
    fused = {"norm": torch.rand(inputs), "eps": 1e-5, "gate": vnni.takes_gate(), "exact": False}
    assert torch.equal(by_amx.product(x, bias, **fused), vnni.product(x, bias, **fused))
    called.clear()
    assert_close(by_amx.product(x[32:], exact=True), x[32:], weight, exact=True)
    assert "amx_part" not in called


def load(folder: Any, *kind: Any) -> ctypes.CDLL:
    flags = dict(zip(("BITS", "TABLE", "SCALES", "MINIMUMS", "GROUP"), map(_number, kind), strict=True))
    path = build.build(folder, "tile_linear", **flags)
    assert path is not None
    return ctypes.CDLL(str(path))


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["int8", "int4:g64:asym", *BLOCKS])
def test_rows_are_looked_up(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    table = Table(**vars(tiles(name, 70, 512)), dtype=dtype)
    rows = torch.tensor([69, 0, 15, 16, 16])
    found, wide = look_up(rows, table), table.dequantize(dtype)[rows]
    assert found is not None and found.dtype == dtype
    torch.testing.assert_close(found, wide)
    assert torch.equal(table.look_up(rows), wide)


def test_stacks_and_other_devices_have_no_kernel() -> None:
    weight = tiles("int4", 64, 64)
    stack = weight.unflatten(0, (2, -1))
    assert stack.shape == (2, 32, 64) and tile_operand(stack) is None
    assert torch.equal(stack[1].dequantize(torch.float32), weight.dequantize(torch.float32)[32:])
    assert torch.equal(stack.dequantize(torch.float32).flatten(0, 1), weight.dequantize(torch.float32))
    x = torch.randn(3, 64)
    assert_close(product(x, stack[1]), x, stack[1])
    assert tile_operand(weight.map(lambda tensor: tensor.to("meta"))) is None

"""Products of packed weights with inputs rounded to 8 bits: against float64, and on each instruction set there is."""

import ctypes
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from genwright.kernels.cpu import build, fused_linear
from genwright.kernels.cpu.amx import cpu_flags
from genwright.kernels.cpu.fused_linear import MAX_TOKENS, Operand, integer_kernel, kernel, operand
from genwright.quant.formats import parse_format
from genwright.quant.packed import Packed

SIZES = [(1, 1), (3, 5), (4, 16), (7, 31), (64, 64), (97, 333), (130, 1027), (961, 576), (9, 7008)]  # outputs, inputs
FORMATS = ["int8", "int8:g32", "int4", "int4:g32:asym", "int4:g64:asym", "int4:g128"]
INSTRUCTIONS = {
    "native": "",
    "avx512": "-mno-avx512vnni",
    "avx2": "-mno-avx512f -mno-avxvnni",
    "plain": "-mno-avx2 -mno-avx512f -mno-fma -mno-f16c",
}
needs_kernel = pytest.mark.skipif(kernel() is None, reason="no C++ compiler")


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x in 8 bits with a scale for every 32 columns, as float64."""
    rows = []
    for row in x.double():
        for group in row.split(32):
            scale = group.abs().max() / 127
            rows.append((group / (scale if scale > 0 else 1)).round() * scale)
    return torch.cat(rows).view(x.shape)


def packed(name: str, outputs: int, inputs: int) -> Packed:
    return parse_format(name).quantize(torch.randn(outputs, inputs))


def product(x: torch.Tensor, weight: Packed, **fused: Any) -> torch.Tensor:
    found = operand(x, weight)
    assert found is not None and found.rounded is not None
    return found.product(x, exact=False, **fused)


def assert_close(y: torch.Tensor, x: torch.Tensor, weight: Packed) -> None:
    exact = rounded(x) @ weight.dequantize(torch.float32).double().T
    # A code of x that lies between two integers may be rounded either way.
    assert (y - exact).norm() < 2e-4 * exact.norm() + 1e-5, (len(x), weight.shape)


@needs_kernel
@pytest.mark.parametrize("name", FORMATS)
def test_products_equal_float64(name):
    torch.manual_seed(0)
    for outputs, inputs in SIZES:
        weight = packed(name, outputs, inputs)
        for tokens in (1, 2, 7, 8, 9):
            x = torch.randn(tokens, inputs) * torch.rand(inputs)
            assert_close(product(x, weight), x, weight)


@needs_kernel
@pytest.mark.parametrize("name", ["int8", "int4:g32:asym"])
def test_many_tokens_are_rounded_alike(name):
    """A prompt's products, which torch computes, have the inputs that the kernel would have rounded."""
    torch.manual_seed(0)
    weight, x = packed(name, 97, 333), torch.randn(40, 333)
    found = operand(x, weight)
    assert found is not None
    torch.testing.assert_close(found.by_pieces(x, exact=False), product(x, weight), rtol=1e-4, atol=1e-4)


@needs_kernel
def test_the_epilogue_is_fused():
    torch.manual_seed(0)
    weight, x, bias, norm = packed("int4", 962, 576), torch.randn(3, 576), torch.randn(962), torch.rand(576)
    normed = x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-5) * norm
    y = rounded(normed) @ weight.dequantize(torch.float32).double().T + bias
    found = operand(x, weight, bias)
    assert found is not None
    gated = found.product(x, bias, norm=norm, eps=1e-5, gate=True, exact=False)
    expected = silu(y[:, :481]) * y[:, 481:]
    assert (gated - expected).norm() < 1e-3 * expected.norm()


@needs_kernel
@pytest.mark.parametrize("name", ["int8:g32", "int4:g32:asym"])
def test_bits_do_not_depend_on_the_batch_or_the_threads(name):
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    weight, x = packed(name, 961, 576), torch.randn(MAX_TOKENS, 576)
    alone = torch.cat([product(row, weight) for row in x.split(1)])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for tokens in (2, 8, 9, MAX_TOKENS):
                assert torch.equal(product(x[:tokens], weight), alone[:tokens])
    finally:
        torch.set_num_threads(threads)


@needs_kernel
def test_extreme_inputs():
    """Zeros, one large value, and values that must not become something finite."""
    weight = packed("int8:g32", 16, 64)
    assert product(torch.zeros(1, 64), weight).eq(0).all()
    one = torch.zeros(1, 64)
    one[0, 40] = 1e30
    assert_close(product(one, weight) / 1e30, one / 1e30, weight)
    for value in (float("nan"), float("inf")):
        one[0, 3] = value
        assert not product(one, weight).isfinite().any()


@needs_kernel
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_each_instruction_set(name, monkeypatch, tmp_path):
    """The kernel compiled without the processor's newer instructions."""
    if not cpu_flags() & {"avx2"}:
        pytest.skip("the processor is not an x86-64 with AVX2")
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, *INSTRUCTIONS[name].split()))
    monkeypatch.setattr(fused_linear, "load_library", lambda source, **defines: _load(tmp_path, source, **defines))
    torch.manual_seed(0)
    for form, fmt in (("Int8", "int8:g32"), ("Int4", "int4:g32:asym")):
        library = integer_kernel.__wrapped__(form)
        assert library is not None
        weight, x = packed(fmt, 97, 333), torch.randn(9, 333)
        found = operand(x, weight)
        assert found is not None
        limited = Operand(found.matrix, found.library, found.exact, fused_linear.address(library, "linear_part"))
        assert_close(limited.product(x, exact=False), x, weight)


def _load(folder: Any, source: str, **defines: Any) -> ctypes.CDLL:
    path = build.build(folder, source, **defines)
    assert path is not None
    return ctypes.CDLL(str(path))

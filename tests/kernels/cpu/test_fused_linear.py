"""The CPU linear kernel against float64, its independence of the batch, and the fallback to torch."""

import ctypes

import pytest
import torch
from torch.nn.functional import linear

from genwright.kernels.cpu import build, fused_linear
from genwright.kernels.cpu.amx import cpu_flags
from genwright.kernels.cpu.fused_linear import MAX_TOKENS, few_tokens_linear, kernel, operand
from genwright.quant import fp8, int8
from genwright.quant.formats import parse_format
from genwright.quant.packed import Weight
from genwright.text.ops.cpu_ops import CpuOps

SIZES = [(1, 1), (3, 5), (4, 16), (7, 31), (64, 64), (97, 333), (130, 1027), (961, 576), (9, 7000)]  # outputs, inputs
# Groups that fill a vector, share one, or end within one.
PACKED = ["int8", "int8:g32", "int8:g24", "int4", "int4:g8", "int4:g40:asym", "int4:g32:asym", "int4:g128", "fp8"]
PACKED += ["fp8:channel"]
needs_kernel = pytest.mark.skipif(kernel() is None, reason="no C++ compiler")


def operands(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shapes = ((tokens, inputs), (outputs, inputs), (outputs,))
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def product(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
    found = operand(x, weight, bias)
    assert found is not None
    return found.product(x, bias)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_product_equals_float64(outputs, inputs, dtype):
    torch.manual_seed(outputs)
    for tokens in (1, 2, 5, 6, 7, 13, MAX_TOKENS):
        x, weight, bias = operands(tokens, outputs, inputs, dtype)
        for shift in (None, bias):
            exact = linear(x.double(), weight.double(), None if shift is None else shift.double())
            y = product(x, weight, shift)
            assert y.dtype == dtype
            error = (y.double() - exact).abs().max() / inputs**0.5
            assert error < (3e-6 if dtype == torch.float32 else 2e-2), (tokens, shift is None)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_the_batch_or_the_threads(dtype):
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    for outputs, inputs in SIZES:
        x, weight, bias = operands(MAX_TOKENS, outputs, inputs, dtype)
        alone = torch.cat([product(row, weight, bias) for row in x.split(1)])
        try:
            for torch_threads in (1, 2, 3):
                torch.set_num_threads(torch_threads)
                for tokens in (2, 3, 4, 5, 6, 7, 8, 11, MAX_TOKENS):
                    assert torch.equal(product(x[:tokens], weight, bias), alone[:tokens])
        finally:
            torch.set_num_threads(threads)


@needs_kernel
@pytest.mark.parametrize("form", ["Float32", "Int4"])
def test_bits_do_not_depend_on_the_batch_when_compiled_for_zen(form, monkeypatch, tmp_path):
    """For these processors GCC fuses products and sums in some functions and not in others, if it is free to."""
    if not cpu_flags() >= {"avx2", "fma"}:
        pytest.skip("the processor is not an x86-64 with AVX2")
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-mno-avx512f", "-mtune=znver3"))
    kind = "ROWS" if form == "Float32" else "GROUPS"
    library = ctypes.CDLL(str(build.build(tmp_path, "fused_linear", FORMAT=form, SCALES=kind)))
    monkeypatch.setattr(fused_linear, "kernel", lambda *kind: library)
    x, plain, _ = operands(MAX_TOKENS, 97, 336, torch.float32)
    weight = plain if form == "Float32" else parse_format("int4").quantize(plain)
    alone = torch.cat([product(row, weight) for row in x.split(1)])
    for tokens in (2, 3, 4, 7, MAX_TOKENS):
        assert torch.equal(product(x[:tokens], weight), alone[:tokens])


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["plain", "int8", "int4:g40:asym"])
def test_fused_norm_bias_gate_and_residual(name, dtype):
    """Against float64, rounded where plain torch rounds."""
    ops = CpuOps()
    for (outputs, inputs), tokens in [((70, 16), 1), ((70, 333), 1), ((962, 576), 1), ((962, 576), 7)]:
        torch.manual_seed(outputs)
        x, weight, bias = operands(tokens, outputs, inputs, dtype)
        weight = weight if name == "plain" else parse_format(name).quantize(weight)
        wide = (weight if name == "plain" else weight.dequantize(torch.float32)).double()
        norm, residual = torch.rand(inputs).to(dtype), torch.randn(tokens, outputs).to(dtype)
        normed = x.double() * torch.rsqrt(x.double().square().mean(dim=1, keepdim=True) + 1e-5) * norm.double()
        y = linear(normed, wide, bias.double())
        gated = torch.nn.functional.silu(y[:, : outputs // 2]) * y[:, outputs // 2 :]
        cases = [
            ({"norm": norm, "eps": 1e-5}, y),
            ({"norm": norm, "eps": 1e-5, "gate": True}, gated),
            ({"residual": residual}, linear(x.double(), wide, bias.double()) + residual.double()),
        ]
        for epilogue, exact in cases:
            got = ops.fused_linear(x, weight, bias=bias, **epilogue)
            assert got.dtype == dtype
            assert (got.double() - exact).norm() < (2e-6 if dtype == torch.float32 else 1e-2) * exact.norm()
        weights = {"w": weight, "w.bias": bias, "norm": norm}
        if name == "plain":  # as the ops one after the other have it, but for sums in another order
            apart = ops.gate(ops.linear(ops.norm(x, weights, "norm", 1e-5), weights, "w"), "silu")
            together = ops.fused_linear(x, weight, bias=bias, norm=norm, eps=1e-5, gate=True)
            torch.testing.assert_close(together, apart, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-3)
            if dtype == torch.bfloat16:
                assert (together != apart).float().mean() < 0.2


@needs_kernel
@pytest.mark.parametrize("name", PACKED)
def test_packed_products_equal_float64(name):
    """By the kernel, and for many tokens by torch with rows that the kernel dequantizes."""
    torch.manual_seed(0)
    for outputs, inputs in [*SIZES, (20, 8), (513, 200)]:
        x, weight, bias = operands(9, outputs, inputs, torch.float32)
        packed = parse_format(name).quantize(weight)
        wide = packed.dequantize(torch.float32).double()
        rounding = 1e-6 * (x.double().abs() @ wide.abs().T + 1)
        for tokens in range(10):
            for shift in (None, bias):
                exact = linear(x[:tokens].double(), wide, None if shift is None else shift.double())
                found = operand(x[:tokens], packed, shift)
                for y in (found.product(x[:tokens], shift), found.many_tokens(x[:tokens], shift)):
                    assert ((y.double() - exact).abs() <= rounding[:tokens]).all(), (outputs, inputs, tokens)


@needs_kernel
@pytest.mark.parametrize("name", PACKED)
def test_bits_of_packed_products_do_not_depend_on_the_batch_or_the_threads(name):
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    for outputs, inputs in ((97, 333), (961, 576)):
        x, weight, bias = operands(MAX_TOKENS, outputs, inputs, torch.float32)
        packed = parse_format(name).quantize(weight)
        alone = torch.cat([product(row, packed, bias) for row in x.split(1)])
        try:
            for torch_threads in (1, 2, 3):
                torch.set_num_threads(torch_threads)
                for tokens in (2, 3, 4, 5, 6, 7, 11, MAX_TOKENS):
                    assert torch.equal(product(x[:tokens], packed, bias), alone[:tokens])
        finally:
            torch.set_num_threads(threads)


@needs_kernel
def test_every_e4m3_value_and_unusual_scales():
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
    values = codes.view(fp8.VALUES)[None].contiguous()
    for scale in (2.0**-140, 1.0, 2.0**100):  # also one that is subnormal
        packed = fp8.Fp8Blocks(values, torch.tensor([[scale]]), 1, len(codes))
        assert torch.equal(product(torch.eye(len(codes)), packed)[:, 0], packed.dequantize(torch.float32)[0])
    half = torch.tensor([[2.0**-24], [-1.5 * 2**-15], [65504.0], [0.0]], dtype=torch.float16)
    row = int8.Int8(torch.arange(-64, 64, dtype=torch.int8).repeat(4, 1), half, 128)
    assert torch.equal(product(torch.eye(128), row).T, row.dequantize(torch.float32))


@needs_kernel
def test_blocks_of_rows_and_bf16_inputs():
    torch.manual_seed(0)
    first, second = (fp8.quantize(torch.randn(rows, 333)) for rows in (40, 200))
    packed = fp8.Fp8Blocks.cat([first, second])  # whose blocks are 8 rows high
    x = torch.randn(3, 333)
    torch.testing.assert_close(product(x, packed), linear(x, packed.dequantize(torch.float32)), rtol=1e-5, atol=1e-3)
    for count in (3, MAX_TOKENS + 1):
        narrow = torch.randn(count, 333).bfloat16()
        y = few_tokens_linear(narrow, packed)
        assert y.dtype == torch.bfloat16
        exact = linear(narrow.double(), packed.dequantize(torch.float32).double())
        assert (y.double() - exact).abs().max() <= 2**-8 * exact.abs().max()


def test_unsupported_packed_weights_are_dequantized(monkeypatch):
    torch.manual_seed(0)
    x = torch.randn(4, 96)
    odd = fp8.Fp8Blocks(torch.randn(8, 96).to(fp8.VALUES), torch.rand(1, 3), 8, 32)  # the kernel reads 64 at a time
    whole = parse_format("int4").quantize(torch.randn(8, 96))
    turned = whole.map(lambda tensor: tensor.T.contiguous().T)
    for packed in (odd, turned, int8.Int8(torch.ones(8, 96, dtype=torch.int8), torch.rand(8, 1).bfloat16(), 96)):
        assert operand(x, packed) is None
        expected = linear(x, packed.dequantize(torch.float32))
        torch.testing.assert_close(few_tokens_linear(x, packed), expected)
        torch.testing.assert_close(CpuOps(deterministic=True).product(x, packed), expected)
    with_kernel = few_tokens_linear(x, whole)
    monkeypatch.setattr(fused_linear, "kernel", lambda *kind: None)
    torch.testing.assert_close(few_tokens_linear(x, whole), with_kernel)


@needs_kernel
def test_bf16_falls_back_if_the_compiler_does_not_support_pairs(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(fused_linear, "cpu_flags", lambda: {"avx512_bf16"})
    monkeypatch.setattr(
        fused_linear, "kernel", lambda *kind: asked.append(kind[0]) or (kernel() if len(asked) > 1 else None)
    )
    assert operand(torch.zeros(1, 32).bfloat16(), torch.zeros(4, 32).bfloat16()) is not None
    assert asked == ["Bf16Pairs", "Bf16"]


@needs_kernel
def test_strides_do_not_matter():
    x, weight, bias = operands(4, 50, 2 * 33, torch.float32)
    narrow = x[:, ::2]
    assert torch.equal(
        product(narrow, weight[:, :33].contiguous(), bias), product(narrow.clone(), weight[:, :33].contiguous(), bias)
    )
    for w in (weight[:, :33], weight[:, ::2]):  # which the kernel leaves to torch
        assert operand(narrow, w) is None
        torch.testing.assert_close(few_tokens_linear(narrow, w, bias), linear(narrow, w, bias))
    assert product(x[:0], weight).shape == (0, 50)
    assert torch.equal(product(x[:, :0], weight[:, :0].contiguous(), bias), bias.expand(4, 50))


def test_unsupported_inputs_use_torch():
    x, weight, bias = operands(4, 8, 16, torch.float64)
    assert torch.equal(few_tokens_linear(x, weight, bias), linear(x, weight, bias))
    many, weight, bias = operands(MAX_TOKENS + 1, 8, 16, torch.float32)
    assert torch.equal(few_tokens_linear(many, weight, bias), linear(many, weight, bias))
    with pytest.raises((RuntimeError, ValueError)):
        few_tokens_linear(many[:2, :15], weight)


@pytest.mark.parametrize("ops", [CpuOps(), CpuOps(deterministic=True)])
def test_products_use_torch_without_the_kernel(ops, monkeypatch):
    x, weight, bias = operands(3, 20, 40, torch.float32)
    with_kernel = ops.product(x, weight, bias)
    monkeypatch.setattr(fused_linear, "kernel", lambda *kind: None)
    torch.testing.assert_close(ops.product(x, weight.clone(), bias), with_kernel)


@needs_kernel
def test_operands_are_cached_per_weight_and_address():
    x, weight, _ = operands(2, 8, 32, torch.float32)
    before = len(fused_linear._operands)
    product(x, weight)
    assert len(fused_linear._operands) == before + 1
    weight.data = torch.randn(4, 32)  # the kernel must not read where it was
    torch.testing.assert_close(product(x, weight), linear(x, weight))
    del weight
    assert len(fused_linear._operands) == before

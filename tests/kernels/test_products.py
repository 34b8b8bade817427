"""The kernel for few tokens gives the product, and each row the same bits; where it cannot be built torch steps in."""

import subprocess
import sys

import pytest
import torch
from torch.nn.functional import linear

from genwright.kernels.cpu import products
from genwright.kernels.cpu.products import MOST_TOKENS, build, few_tokens_linear, kernel, product
from genwright.text.layers.deterministic import Deterministic
from genwright.text.layers.reference import Reference

SIZES = [(1, 1), (3, 5), (4, 16), (7, 31), (64, 64), (97, 333), (130, 1027), (961, 576), (9, 7000)]  # outputs, inputs
needs_kernel = pytest.mark.skipif(kernel() is None, reason="no C++ compiler")


def operands(tokens: int, outputs: int, inputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shapes = ((tokens, inputs), (outputs, inputs), (outputs,))
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), SIZES)
def test_product_is_the_float64_one(outputs, inputs, dtype):
    torch.manual_seed(outputs)
    for tokens in (1, 2, 5, 6, 7, 13, MOST_TOKENS):
        x, weight, bias = operands(tokens, outputs, inputs, dtype)
        for shift in (None, bias):
            exact = linear(x.double(), weight.double(), None if shift is None else shift.double())
            y = product(x, weight, shift)
            assert y.dtype == dtype
            error = (y.double() - exact).abs().max() / inputs**0.5
            assert error < (3e-6 if dtype == torch.float32 else 2e-2), (tokens, shift is None)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_among_others_and_with_any_threads(dtype):
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    for outputs, inputs in SIZES:
        x, weight, bias = operands(MOST_TOKENS, outputs, inputs, dtype)
        alone = torch.cat([product(row, weight, bias) for row in x.split(1)])
        try:
            for torch_threads in (1, 2, 3):
                torch.set_num_threads(torch_threads)
                for tokens in (2, 3, 4, 5, 6, 7, 8, 11, MOST_TOKENS):
                    assert torch.equal(product(x[:tokens], weight, bias), alone[:tokens])
        finally:
            torch.set_num_threads(threads)


@needs_kernel
def test_strides_do_not_matter():
    x, weight, bias = operands(4, 50, 2 * 33, torch.float32)
    narrow = x[:, ::2]
    assert torch.equal(
        product(narrow, weight[:, :33].contiguous(), bias), product(narrow.clone(), weight[:, :33].contiguous(), bias)
    )
    for w in (weight[:, :33], weight[:, ::2]):  # which the kernel leaves to torch
        assert not products.takes(narrow, w)
        torch.testing.assert_close(few_tokens_linear(narrow, w, bias), linear(narrow, w, bias))
    assert product(x[:0], weight).shape == (0, 50)


def test_what_the_kernel_does_not_take_goes_to_torch():
    x, weight, bias = operands(4, 8, 16, torch.float64)
    assert torch.equal(few_tokens_linear(x, weight, bias), linear(x, weight, bias))
    many, weight, bias = operands(MOST_TOKENS + 1, 8, 16, torch.float32)
    assert torch.equal(few_tokens_linear(many, weight, bias), linear(many, weight, bias))
    with pytest.raises((RuntimeError, ValueError)):
        few_tokens_linear(many[:2, :15], weight)


@pytest.mark.parametrize("ops", [Reference(), Deterministic()])
def test_without_the_kernel_products_are_torchs(ops, monkeypatch):
    x, weight, bias = operands(3, 20, 40, torch.float32)
    with_kernel = ops.product(x, weight, bias)
    monkeypatch.setattr(products, "kernel", lambda: None)
    torch.testing.assert_close(ops.product(x, weight, bias), with_kernel)


def test_no_compiler_a_broken_one_or_no_folder_mean_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setattr(products.shutil, "which", lambda name: name if name == "false" else None)
    assert build(tmp_path / "broken") is None
    assert not [path for path in (tmp_path / "broken").iterdir() if path.name != "lock"], "nothing is left behind"
    monkeypatch.setattr(products.shutil, "which", lambda name: None)
    assert build(tmp_path / "none") is None
    (tmp_path / "file").touch()
    monkeypatch.undo()
    assert build(tmp_path / "file") is None


@needs_kernel
def test_processes_build_it_once(tmp_path):
    """Two at the same time, in an empty folder: both get the same file, and it works."""
    imports = "import sys; from pathlib import Path; from genwright.kernels.cpu.products import build"
    code = f"{imports}; print(build(Path(sys.argv[1])).name)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {run.communicate()[0].strip() for run in runs}
    assert len(paths) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"lock", *paths}

"""GPTQ's rounding against the paper's formulas, one weight at a time in float64."""

import pytest
import torch

from genwright.errors import UserError
from genwright.quant.formats import Format, parse_format
from genwright.quant.gptq import DAMPING, Inverse, calibrate, round_columns
from genwright.quant.int4 import Int4, unpack
from genwright.quant.packed import Packed


def inputs(tokens: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Correlated inputs, as in a model."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(columns, columns, generator=generator) / columns**0.5
    return torch.randn(tokens, columns, generator=generator) @ (mix + torch.eye(columns) / 3)


def loss(packed: Packed, weight: torch.Tensor, x: torch.Tensor) -> float:
    return ((packed.dequantize(torch.float64) - weight.double()) @ x.double().T).square().sum().item()


def one_by_one(weight: torch.Tensor, hessian: torch.Tensor, packed: Int4) -> torch.Tensor:
    """Equations 2 and 3 of the paper: round a column, distribute its error, remove it from the inverse Hessian."""
    h = hessian.double()
    h = h + torch.eye(len(h)).double() * h.diagonal().mean() * DAMPING
    scales = packed.scales.double().repeat_interleave(packed.group, 1)
    low = -8 * scales if packed.minimums is None else packed.minimums.double().repeat_interleave(packed.group, 1)
    w, inverse = weight.double().clone(), torch.linalg.inv(h)
    q = torch.zeros_like(w)
    left = list(range(len(h)))
    for j in hessian.diagonal().argsort(descending=True, stable=True).tolist():
        q[:, j] = ((w[:, j] - low[:, j]) / scales[:, j]).round().clamp(0, 15)
        error = (w[:, j] - (q[:, j] * scales[:, j] + low[:, j])) / inverse[j, j]
        w[:, left] -= error[:, None] * inverse[j, left]
        inverse = inverse - torch.outer(inverse[:, j], inverse[j]) / inverse[j, j]
        left.remove(j)
    return q


@pytest.mark.parametrize("name", ["int4:g32", "int4:g64:asym"])
def test_rounding_equals_the_paper(name: str) -> None:
    weight, x = torch.randn(6, 192, generator=torch.Generator().manual_seed(1)), inputs(500, 192)
    packed = round_columns(weight, Inverse.of(x.T @ x), parse_format(name))
    expected = one_by_one(weight, x.T @ x, packed)
    assert (unpack(packed.words).double() == expected).double().mean() > 0.99  # ties fall either way


def test_blocks_change_nothing_and_damping_does() -> None:
    weight, x = torch.randn(6, 192, generator=torch.Generator().manual_seed(1)), inputs(500, 192)
    form = parse_format("int4:g32")
    whole, parts = (round_columns(weight, Inverse.of(x.T @ x), form, block).words for block in (192, 16))
    assert (unpack(whole) == unpack(parts)).double().mean() > 0.99
    damped = round_columns(weight, Inverse.of(x.T @ x, damping=1e6), form)
    assert torch.equal(damped.words, form.quantize(weight).words)  # nothing is corrected


@pytest.mark.parametrize("columns", [256, 100, 7])
@pytest.mark.parametrize("name", ["int4", "int4:g64:asym", "int8", "fp8", "fp8:channel"])
def test_the_error_of_the_product_falls(name: str, columns: int) -> None:
    weight, x = torch.randn(40, columns, generator=torch.Generator().manual_seed(2)), inputs(1000, columns, 3)
    x[:, columns // 2] = 0  # a channel that is never used
    form = parse_format(name)
    packed, nearest = round_columns(weight, Inverse.of(x.T @ x), form), form.quantize(weight)
    assert packed.shape == nearest.shape and type(packed) is type(nearest)
    assert torch.equal(packed.scales, nearest.scales)
    assert loss(packed, weight, x) < loss(nearest, weight, x) * (0.7 if columns > 7 else 1.0)


@pytest.mark.parametrize("name", ["int4", "int4:g64:asym", "int8:g32", "fp8"])
def test_uncorrelated_inputs_are_rounded_to_nearest(name: str) -> None:
    weight, form = torch.randn(9, 130), parse_format(name)
    nearest = form.quantize(weight).tensors()
    for inverse in (None, Inverse.of(torch.eye(130))):
        packed = round_columns(weight, inverse, form).tensors()
        assert all(torch.equal(packed[key], nearest[key]) for key in nearest)


class Linear:
    """A block of one matrix."""

    def __init__(self, weight: torch.Tensor):
        self.matrices = {"inputs": {"weight": weight}}

    def run(self, x, observe=None):
        if observe is not None:
            observe("inputs", x)
        return x @ self.matrices["inputs"]["weight"].T


def test_blocks_get_the_outputs_of_quantized_blocks() -> None:
    form: Format = parse_format("int4:g32:asym")
    weights = [torch.randn(64, 64, generator=torch.Generator().manual_seed(i)) / 8 for i in range(3)]
    hidden = [inputs(200, 64, seed) for seed in range(4)]
    found = list(calibrate(hidden, (Linear(weight.clone()) for weight in weights), form))
    x = torch.cat(hidden)
    for packed, weight in zip(found, weights, strict=True):
        again = round_columns(weight, Inverse.of(x.T @ x), form)
        assert (unpack(packed["weight"].words) == unpack(again.words)).float().mean() > 0.99
        x = packed["weight"].linear(x)


def test_nan_inputs_are_one_sentence() -> None:
    for hessian in (torch.full((4, 4), float("nan")), -torch.eye(4)):
        with pytest.raises(UserError, match="are NaN or too similar"):
            Inverse.of(hessian)

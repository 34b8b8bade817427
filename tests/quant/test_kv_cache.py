"""Cache rows in 8 and 4 bits against their definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genwright.quant.kv_cache import GROUP, entries, pack, unpack


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([8, 4]),
    size=st.one_of(st.integers(1, 100), st.sampled_from([64, 128, 256, 576])),
    heads=st.integers(1, 3),
    exponent=st.integers(-10, 8),
    seed=st.integers(0, 1 << 30),
)
def test_rows_equal_the_definition(bits: int, size: int, heads: int, exponent: int, seed: int) -> None:
    rows = torch.randn(5, heads, size, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    tensors = pack("k", rows, bits)
    stored = {name: (tuple(tensor.shape[1:]), tensor.dtype) for name, tensor in tensors.items()}
    assert stored == entries("k", (heads, size), bits)
    wide = unpack("k", tensors, size, bits, torch.float32)
    group, half = GROUP[bits], math.ceil(size / 2)
    steps = tensors["k.scale"].double().repeat_interleave(group, -1)[..., :size]
    if bits == 8:
        expected = tensors["k"].double() * steps
    else:
        nibble = [(tensors["k"][..., j % half] >> (4 if j >= half else 0)) & 15 for j in range(size)]
        minimums = tensors["k.minimum"].double().repeat_interleave(group, -1)[..., :size]
        expected = torch.stack(nibble, dim=-1).double() * steps + minimums
    torch.testing.assert_close(wide.double(), expected, rtol=1e-6, atol=1e-7 * 2.0**exponent)
    levels = 127 if bits == 8 else 15
    bound = steps / 2 + levels * (steps * 2.0**-11 + 2.0**-25) + rows.abs().max() * 2.0**-11 * (bits == 4) + 2.0**-25
    assert ((wide - rows).abs() <= bound * (1 + 1e-5)).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_a_token_does_not_depend_on_other_tokens(bits: int) -> None:
    rows = torch.randn(7, 2, 80)
    together = pack("v", rows, bits)
    for token in range(7):
        alone = pack("v", rows[token : token + 1], bits)
        assert all(torch.equal(alone[name][0], tensor[token]) for name, tensor in together.items())


@pytest.mark.parametrize("bits", [8, 4])
def test_nan_is_kept(bits: int) -> None:
    rows = torch.randn(3, 2, 64)
    rows[1, 0, 5] = float("nan")
    wide = unpack("k", pack("k", rows, bits), 64, bits, torch.float32)
    assert wide[1, 0].isnan().any() and not wide[[0, 2]].isnan().any() and not wide[1, 1].isnan().any()

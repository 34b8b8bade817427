"""Every weight format against its definition in float64, at odd sizes and in stacks."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genwright.errors import UserError
from genwright.quant import int4, int8
from genwright.quant.formats import parse_format
from genwright.quant.fp8 import Fp8Blocks
from genwright.quant.packed import Packed

NAMES = (
    "int8",
    "int8:g32",
    "int4",
    "int4:g64",
    "int4:g128:asym",
    "int4:g8:asym",
    "fp8",
    "fp8:channel",
    "int4:g64:asym:f32",
    "int8:g32:f32",
)
SHAPES = ((576, 576), (5, 100), (3, 7), (1, 1), (200, 300), (9, 64))


def matrix(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Normal values whose magnitude differs between rows and, every 16 columns, within a row."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    rows, columns = (torch.arange(size) for size in shape)
    return weight * 2.0 ** ((rows[:, None] * 3 + columns // 16) % 7 - 6)


def by_definition(packed: Packed, row: int, column: int) -> float:
    """One weight from the stored tensors, by the format's formula."""
    if isinstance(packed, int8.Int8):
        return packed.values[row, column].item() * packed.scales[row, column // packed.group].item()
    if isinstance(packed, Fp8Blocks):
        return packed.values[row, column].item() * packed.scales[row // packed.height, column // packed.width].item()
    assert isinstance(packed, int4.Int4)
    word, place = packed.words[row, column // 8].item() & 0xFFFFFFFF, column % 8
    q = word >> 4 * (place // 2 + 4 * (place % 2)) & 15
    scale = packed.scales[row, column // packed.group].item()
    if packed.minimums is None:
        return (q - 8) * scale
    return q * scale + packed.minimums[row, column // packed.group].item()


def error_bound(packed: Packed, weight: torch.Tensor) -> torch.Tensor:
    """The largest possible error of each weight: half a step plus the rounding of the scale."""
    group = next(getattr(packed, name) for name in ("group", "width") if hasattr(packed, name))
    steps = packed.scales.double().abs().repeat_interleave(group, -1)[:, : weight.shape[1]]
    if isinstance(packed, Fp8Blocks):
        steps = steps.repeat_interleave(packed.height, 0)[: weight.shape[0]]
        return weight.double().abs() / 16 * (1 + 1e-6) + steps * 2.0**-10
    levels = 127 if isinstance(packed, int8.Int8) else 15
    half, tiny = (2.0**-11, 2.0**-25) if packed.scales.dtype == torch.float16 else (2.0**-24, 0.0)
    rounding = levels * torch.maximum(steps * half, torch.tensor(tiny).double())
    if levels == 15 and packed.minimums is None:  # the far end has only seven steps: there a value may be cut
        rounding = rounding + steps * (1 + half) / 2
    if levels == 15 and packed.minimums is not None:
        rounding = rounding + weight.double().abs().max() * half
    return steps / 2 * (1 + 1e-6) + rounding


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_weights_equal_the_definition(name: str, shape: tuple[int, int]) -> None:
    weight = matrix(shape)
    packed = parse_format(name).quantize(weight)
    assert packed.shape == shape
    wide = packed.dequantize(torch.float32)
    for i in range(0, shape[0], max(1, shape[0] // 7)):
        for j in [*range(0, shape[1], max(1, shape[1] // 40)), shape[1] - 1]:
            wanted = by_definition(packed, i, j)
            assert wide[i, j].item() == pytest.approx(wanted, rel=1e-6, abs=1e-7)
    assert ((wide.double() - weight.double()).abs() <= error_bound(packed, weight)).all()
    for dtype in (torch.bfloat16, torch.float64):
        assert torch.equal(packed.dequantize(dtype), wide.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 576), (37, 100), (130, 7)])
@pytest.mark.parametrize("name", NAMES)
def test_products(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    packed = parse_format(name).quantize(weight)
    x = torch.randn(9, shape[1], generator=torch.Generator().manual_seed(2)).to(dtype)
    bias = torch.randn(shape[0], generator=torch.Generator().manual_seed(3)).to(dtype)
    got = packed.linear(x, bias).double() - bias.double()
    exact = x.double() @ packed.dequantize(torch.float64).T
    assert (got - exact).norm() / exact.norm() < (1e-2 if dtype == torch.bfloat16 else 1e-6)
    unquantized = x.double() @ weight.double().T
    # Frobenius: a step of int8 is 1/127 of the largest in a row, of int4 1/8 or 1/15 of the range in a group.
    bound = {"int8": 1.5e-2, "int4": 0.15, "fp8": 4e-2}[name[: name.index(":")] if ":" in name else name]
    assert (got - unquantized).norm() / unquantized.norm() < bound


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    rows=st.integers(1, 5),
    columns=st.integers(1, 150),
    exponent=st.integers(-20, 10),
    seed=st.integers(0, 1 << 30),
)
def test_round_trip(name: str, rows: int, columns: int, exponent: int, seed: int) -> None:
    fmt, weight = parse_format(name), matrix((rows, columns), seed) * 2.0**exponent
    weight[:, seed % columns :: 3] = 0
    packed = fmt.quantize(weight)
    wide = packed.dequantize(torch.float32)
    assert ((wide.double() - weight.double()).abs() <= error_bound(packed, weight)).all()
    stored = {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in packed.tensors().items()}
    assert fmt.entries((rows, columns)) == stored
    assert fmt.bytes((rows, columns)) == sum(tensor.nbytes for tensor in packed.tensors().values())
    again = fmt.assemble((rows, columns), packed.tensors())
    assert torch.equal(again.dequantize(torch.float32), wide)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zeros(name: str) -> None:
    packed = parse_format(name).quantize(torch.zeros(4, 50))
    assert not packed.dequantize(torch.float32).any()


@pytest.mark.parametrize("columns", [1, 7, 8, 9, 100, 576])
def test_int4_words(columns: int) -> None:
    q = torch.randint(16, (3, columns), generator=torch.Generator().manual_seed(0))
    words = int4.pack(q)
    assert words.shape == (3, math.ceil(columns / 8)) and words.dtype == torch.int32
    wide = int4.unpack(words)
    assert torch.equal(wide[:, :columns].long(), q) and not wide[:, columns:].any()
    pair = words[0, 0].item() >> 4 & 0x000F000F
    assert columns < 4 or (pair & 15, pair >> 16) == (q[0, 2], q[0, 3])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [128, 48, 5])
def test_fused_matrices_and_stacks_of_them(name: str, rows: int) -> None:
    fmt, parts = parse_format(name), [matrix((rows, 100), seed) for seed in range(6)]
    packed = [fmt.quantize(part) for part in parts]
    fused = type(packed[0]).cat(packed)
    wide = torch.cat([part.dequantize(torch.float32) for part in packed])
    assert torch.equal(fused.dequantize(torch.float32), wide)
    experts, expected = fused.unflatten(0, (3, -1)), wide.unflatten(0, (3, -1))  # gate and up of three experts
    assert experts.shape == (3, 2 * rows, 100)
    assert torch.equal(experts[1].dequantize(torch.float32), expected[1])
    chosen = torch.tensor([2, 0, 2, 1])
    assert torch.equal(experts[chosen].dequantize(torch.float32), expected[chosen])


@pytest.mark.parametrize("name", NAMES)
def test_names_are_read_back(name: str) -> None:
    fmt = parse_format(name)
    assert parse_format(fmt.name) == fmt
    assert parse_format("int4").name == "int4:g32"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("int5", r"Weight format 'int5' is unknown; choose int8, int4, "),
        ("", r"Weight format '' is unknown; choose"),
        ("int4:64", r"Weight format 'int4:64' is unknown"),
        ("int8:asym", r"Weight format 'int8:asym' is unknown"),
        ("int4:asym:g64", r"Weight format 'int4:.* is unknown"),
        ("int4:g" + "9" * 40, r"Weight format 'int4:.* is unknown"),
        ("int4:g20", r"'int4:g20' must be a multiple of 8 columns up to 65,536, not 20\.$"),
        ("int4:g0", r"must be a multiple of 8 columns up to 65,536, not 0"),
    ],
)
def test_a_bad_name_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_format(name)

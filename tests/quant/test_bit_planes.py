"""Bit planes hold every GGUF type exactly, in about as many bytes as the file."""

import pytest
import torch
from quant.random_blocks import QUANTIZED, random_rows

from genwright.quant import ggml
from genwright.quant.bit_planes import BitPlanes, bit_planes
from genwright.quant.ggml import FORMATS, TYPES, dequantize, repack
from genwright.quant.tiles import Codes, Scales

# Bits per weight; the types that are not listed are our own formats, as large as in the file.
BITS = {"Q2_K": 3.125, "Q3_K": 3.5625, "Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.5625}
BITS |= {"Q5_0": 5.5, "Q5_1": 6, "IQ4_NL": 4.5, "IQ4_XS": 4.3125, "MXFP4": 4.5}


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_type_is_held_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = QUANTIZED[name]
    raw = torch.from_numpy(random_rows(kind, 37, 512))
    packed, wide = repack(raw, kind), dequantize(raw, kind)
    assert packed.shape == (37, 512) and isinstance(packed, BitPlanes) == (name in BITS)
    assert torch.equal(packed.dequantize(torch.float32), wide)
    assert torch.equal(packed.dequantize(torch.bfloat16), wide.bfloat16())
    monkeypatch.setattr(ggml, "CHUNK", 1 << 13)
    assert torch.equal(repack(raw, kind).dequantize(torch.float32), wide)


@pytest.mark.parametrize("name", QUANTIZED)
def test_bytes(name: str) -> None:
    kind = QUANTIZED[name]
    packed = repack(torch.from_numpy(random_rows(kind, 5, 768)), kind)
    size = sum(tensor.nbytes for tensor in packed.tensors().values())
    assert size == FORMATS[kind].bytes((5, 768))
    assert 8 * size / (5 * 768) == BITS.get(name, 8 * TYPES[kind].bytes / TYPES[kind].elements)


@pytest.mark.parametrize("name", BITS)
def test_rows_and_stacks(name: str) -> None:
    kind = QUANTIZED[name]
    packed = repack(torch.from_numpy(random_rows(kind, 24, 512)), kind)
    wide = packed.dequantize(torch.float32)
    rows = torch.tensor([3, 23, 3])
    assert torch.equal(packed[rows].dequantize(torch.float32), wide[rows])
    assert torch.equal(packed.narrow(0, 5, 9).dequantize(torch.float32), wide[5:14])
    assert torch.equal(packed.narrow(1, 256, 256).dequantize(torch.float32), wide[:, 256:])
    stack = packed.unflatten(0, (3, 8))
    assert stack.shape == (3, 8, 512)
    assert torch.equal(stack.dequantize(torch.float32), wide.unflatten(0, (3, 8)))
    assert torch.equal(stack[1].dequantize(torch.float32), wide[8:16])
    assert torch.equal(BitPlanes.cat([packed, packed]).dequantize(torch.float32), torch.cat([wide, wide]))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6])
def test_every_code_is_at_its_place(bits: int) -> None:
    q = torch.randint(0, 1 << bits, (7, 320), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    planes = bit_planes(Codes(q, bits, 32, Scales(torch.ones(7, 10, dtype=torch.float16))))
    assert torch.equal(planes.integers(), q)
    assert [plane is not None for plane in (planes.nibbles, planes.pairs, planes.singles)] == [
        bool(bits & width) for width in (4, 2, 1)
    ]
    # The formula of the module, one weight at a time.
    for column in (0, 1, 13, 38, 127, 319):
        chunk, word, weight = column // 32, column % 32 // 8, column % 8
        nibble = weight // 2 + 4 * (weight % 2)
        byte, o, value, shift = nibble // 2, nibble % 2, 0, 0
        for width, plane in ((4, planes.nibbles), (2, planes.pairs), (1, planes.singles)):
            if plane is not None:
                per_word = 4 // width
                stored = int(plane[3, chunk * width + word // per_word]) & 0xFFFFFFFF
                at = 8 * byte + width * (2 * (word % per_word) + o)
                value, shift = value | (stored >> at & (1 << width) - 1) << shift, shift + width
        assert value == q[3, column]

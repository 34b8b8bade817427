"""Every block type, bit for bit, against the gguf package."""

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from quant.random_blocks import random_rows

from genwright.quant import ggml
from genwright.quant.ggml import OTHER_TYPES, TYPES, dequantize, tiles


def bits(values: torch.Tensor | np.ndarray) -> torch.Tensor:
    """Compare bits, so that -0.0 differs from 0.0."""
    return torch.as_tensor(values).contiguous().view(torch.int32)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: TYPES[kind].name)
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_random_blocks_equal_the_gguf_package(kind: int, rows: int) -> None:
    raw = random_rows(kind, rows, 768)
    expected = quants.dequantize(raw, GGMLQuantizationType(kind))
    wide = dequantize(torch.from_numpy(raw), kind)
    assert wide.shape == (rows, 768)
    assert torch.equal(bits(wide), bits(expected))


@pytest.mark.parametrize("name", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantized_weights_equal_the_gguf_package(name: str) -> None:
    kind = GGMLQuantizationType[name]
    weights = np.random.default_rng(1).standard_normal((5, 320)).astype(np.float32)
    packed = quants.quantize(weights, kind)
    wide = dequantize(torch.from_numpy(packed.view(np.uint8)), kind)
    assert torch.equal(bits(wide), bits(quants.dequantize(packed, kind)))
    assert np.abs(wide.numpy() - weights).max() < 0.5


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: TYPES[kind].name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_are_the_rounded_float32(kind: int, dtype: torch.dtype) -> None:
    raw = torch.from_numpy(random_rows(kind, 3, 512))
    assert torch.equal(dequantize(raw, kind, dtype), dequantize(raw, kind).to(dtype))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: TYPES[kind].name)
def test_the_result_does_not_depend_on_the_chunk_size(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.from_numpy(random_rows(kind, 5, 512))
    whole = dequantize(raw, kind, torch.bfloat16), dequantize(raw, kind)
    monkeypatch.setattr(ggml, "CHUNK", 768)
    assert torch.equal(dequantize(raw, kind, torch.bfloat16), whole[0])
    assert torch.equal(dequantize(raw, kind), whole[1])


@pytest.mark.parametrize("kind", [k for k in TYPES if TYPES[k].stored is None], ids=lambda kind: TYPES[kind].name)
def test_tiles_hold_every_type_exactly(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.from_numpy(random_rows(kind, 37, 512))
    wide = dequantize(raw, kind)
    assert torch.equal(tiles(raw, kind).dequantize(torch.float32), wide)
    monkeypatch.setattr(ggml, "CHUNK", 1 << 13)
    assert torch.equal(tiles(raw, kind).dequantize(torch.float32), wide)


def test_stored_floats_are_viewed() -> None:
    raw = torch.zeros(2, 8, dtype=torch.uint8)
    assert dequantize(raw, 1, torch.float16).data_ptr() == raw.data_ptr()


def test_ids_and_block_sizes_equal_ggml() -> None:
    for kind, block in TYPES.items():
        assert GGMLQuantizationType(kind).name == block.name
        assert GGML_QUANT_SIZES[GGMLQuantizationType(kind)] == (block.elements, block.bytes)
    for kind, name in OTHER_TYPES.items():
        assert GGMLQuantizationType(kind).name == name and kind not in TYPES

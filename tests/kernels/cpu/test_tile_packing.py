"""The kernel that lays out tiles against the torch form."""

import pytest
import torch
from quant.random_blocks import random_rows

from genwright.kernels.cpu.tile_packing import kernel, tiles_of_blocks, tiles_of_integers
from genwright.quant import ggml
from genwright.quant.formats import parse_format
from genwright.quant.tiles import as_tiles, tileable

KINDS = [kind for kind, block in ggml.TYPES.items() if block.stored is None]
pytestmark = pytest.mark.skipif(kernel() is None, reason="no C++ compiler")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: ggml.TYPES[kind].name)
def test_blocks_of_every_type(kind: int) -> None:
    for rows in (16, 37):
        raw = torch.from_numpy(random_rows(kind, rows, 512))
        ours, plain = tiles_of_blocks(raw, kind), ggml.tiles(raw, kind)
        assert ours.tensors().keys() == plain.tensors().keys()
        assert all(torch.equal(tensor, plain.tensors()[name]) for name, tensor in ours.tensors().items())
        assert torch.equal(ours.dequantize(torch.float32), ggml.dequantize(raw, kind))
        half = raw.shape[1] // 2
        part = tiles_of_blocks(raw[:, half:], kind)  # whose rows are not next to each other
        assert torch.equal(part.dequantize(torch.float32), ggml.dequantize(raw, kind)[:, 256:])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: ggml.TYPES[kind].name)
def test_every_tensor_of_the_tiles_is_in_the_given_memory(kind: int) -> None:
    given = list[torch.Tensor]()

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        given.append(torch.empty(shape, dtype=dtype))
        return given[-1]

    tiles = tiles_of_blocks(torch.from_numpy(random_rows(kind, 37, 512)), kind, empty)
    assert {t.data_ptr() for t in tiles.tensors().values()} == {t.data_ptr() for t in given}


@pytest.mark.parametrize("name", ["int8", "int8:g32", "int4", "int4:g64:asym"])
def test_integers(name: str) -> None:
    torch.manual_seed(0)
    for shape in ((1, 1), (3, 5), (33, 333), (100, 256)):
        packed = parse_format(name).quantize(torch.randn(shape))
        assert tileable(packed)
        ours, plain = tiles_of_integers(packed), as_tiles(packed)
        assert {name: t.shape for name, t in ours.tensors().items()} == {n: t.shape for n, t in plain.tensors().items()}
        assert torch.equal(ours.dequantize(torch.float32), packed.dequantize(torch.float32))

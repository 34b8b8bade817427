"""Attention over a cache in several places is attention over one."""

import numpy as np
import pytest
import torch

from genwright.kernels import PAGE
from genwright.text.cache.layout import Cache, CacheSpec, LayerCache, LayerSpec
from genwright.text.config import Attention, Mla
from genwright.text.ops.placed_ops import Place, PlacedCache, PlacedOps, PlacedPages, Sparse
from genwright.text.ops.step import Chunk, Step, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

CPU = torch.device("cpu")
SPANS = [(70, 1), (3, 1), (130, 4), (0, 40), (90, 2)]
MLA = Mla(None, 12, 6, 4, 5, rope_interleave=False)
ATTENTION = Attention(0.4, None, "rope")


def new_step(chunks: list[Chunk]) -> Step:
    angles = torch.arange(200)[:, None, None] * torch.tensor([0.3, 0.1])
    return StepBuffers(200, 8, 8, CPU, 1, {"rope": (angles.cos(), angles.sin())}).fill(chunks)


def chunks_of(spans: list[tuple[int, int]], first: int) -> list[Chunk]:
    """Sequences with pages from `first` on."""
    chunks = []
    for start, count in spans:
        pages = -(-(start + count) // PAGE)
        chunks.append(Chunk([0] * count, start, [list(range(first, first + pages))]))
        first += pages
    return chunks


class Fixture:
    """The same rows in one cache and in two others, between which the sequences are divided."""

    def __init__(self, rows: dict[str, tuple[int, ...]], sparsity: float | None):
        torch.manual_seed(0)
        spec = CacheSpec([LayerSpec(rows)], torch.float32)
        self.whole, *parts = (Cache(spec, 20, CPU).layers[0] for _ in range(3))
        chunks, self.parts = chunks_of(SPANS, 1), list[tuple[Place, LayerCache]]()
        self.step = new_step(chunks)
        for values in self.whole.rows.values():
            values.normal_()
        offsets = self.step.offsets.tolist()
        for indexes, cache in zip(([0, 3, 4], [1, 2]), parts, strict=True):
            local = chunks_of([SPANS[i] for i in indexes], 2)
            for i, chunk in zip(indexes, local, strict=True):
                for name, values in cache.rows.items():
                    values[chunk.tables[0]] = self.whole.rows[name][chunks[i].tables[0]]
            token_rows = torch.cat([torch.arange(offsets[i], offsets[i + 1]) for i in indexes])
            step = new_step(local)
            sparse = None
            if sparsity is not None:
                positions = step.positions.numpy().copy()
                sparse = Sparse(sparsity, positions, np.ones(len(positions), bool), CPU)
            self.parts.append((Place(token_rows, step, step, sparse), cache))

    def cache(self, *kinds: str) -> PlacedCache:
        places = [
            PlacedPages(place, None if kind == "host" else cache, None if kind == "device" else cache)
            for (place, cache), kind in zip(self.parts, kinds, strict=True)
        ]
        return PlacedCache(0, 0, {}, self.whole.spec, places)

    def attend(self, ops, cache: LayerCache, latent: bool) -> torch.Tensor:
        torch.manual_seed(1)
        tokens = len(self.step.tokens)
        if not latent:
            return ops.rope_attend(torch.randn(tokens, (6 + 2 * 2) * 4), {}, ATTENTION, cache, self.step)
        weights = {"kv_norm": torch.rand(12), "kv_b": torch.randn(3 * (6 + 5), 12)}
        q, kv = torch.randn(tokens, 3 * 10), torch.randn(tokens, 16)
        return ops.latent_attend(q, kv, weights, MLA, ATTENTION, cache, self.step)


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("kinds", [("device", "host"), ("host", "device"), ("device", "device")])
def test_places_together_attend_as_one(latent, kinds):
    fixture = Fixture({"latent": (16,)} if latent else {"k": (2, 4), "v": (2, 4)}, None)
    placed = fixture.attend(PlacedOps(TorchOps(), TorchOps()), fixture.cache(*kinds), latent)
    torch.testing.assert_close(placed, fixture.attend(TorchOps(), fixture.whole, latent))


@pytest.mark.parametrize("latent", [False, True])
def test_sparse_places_that_read_all_attend_as_one(latent):
    fixture = Fixture({"latent": (16,)} if latent else {"k": (2, 4), "v": (2, 4)}, 1.0)
    kinds = ("device", "host") if latent else ("keys", "host")
    placed = fixture.attend(PlacedOps(TorchOps(), TorchOps()), fixture.cache(*kinds), latent)
    torch.testing.assert_close(placed, fixture.attend(TorchOps(), fixture.whole, latent))


def test_other_ops_are_the_backends():
    ops = TorchOps()
    assert PlacedOps(ops, ops).norm == ops.norm
    assert PlacedOps(ops, ops).deterministic is False

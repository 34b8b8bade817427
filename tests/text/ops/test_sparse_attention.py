"""Top-k sparse attention against a plain form: all weights, of which those that are not chosen become zero."""

import numpy as np
import pytest
import torch

from genwright.kernels import PAGE
from genwright.text.cache.layout import Cache, CacheSpec, LayerSpec
from genwright.text.ops.sparse_attention import SparseRows, sparse_attend, tokens_read
from genwright.text.ops.step import Chunk, StepBuffers

HEADS, SIZE, SCALE = 6, 10, 0.3
LENGTHS = {"decode": [(40, 1), (1, 1), (130, 1), (2, 1)], "verify": [(70, 3), (90, 3), (17, 5)], "prompt": [(0, 90)]}


def plain(q, k, v, position: int, count: int, window: int | None) -> torch.Tensor:
    """One head's query over keys and values [length, size] up to its own position."""
    first = 0 if window is None else max(0, position - window + 1)
    weights = torch.softmax(k[first : position + 1] @ q * SCALE, 0)
    order = sorted(range(len(weights) - 1), key=lambda i: -float(weights[i]))
    kept = [*order[:count], len(weights) - 1]
    return sum((weights[i] * v[first + i] for i in kept), torch.zeros(v.shape[1]))


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("window", [None, 25])
@pytest.mark.parametrize("sparsity", [0.05, 0.3, 1.0])
@pytest.mark.parametrize(("kv_heads", "bits"), [(6, None), (2, None), (2, 8), (3, 4), (0, None)])
def test_sparse_attention_is_the_plain_form(kind, window, sparsity, kv_heads, bits):
    torch.manual_seed(0)
    names = ("k", "v") if kv_heads else ("latent", "latent")
    rows = dict.fromkeys(names, (kv_heads, SIZE)) if kv_heads else {"latent": (SIZE,)}
    cache = Cache(CacheSpec([LayerSpec(rows, window)], torch.float32, bits), 20, torch.device("cpu"))
    chunks, first = [], 1
    for start, count in LENGTHS[kind]:
        pages = -(-(start + count) // PAGE)
        chunks.append(Chunk([0] * count, start, [list(range(first, first + pages))[::-1]]))
        first += pages
    layer = cache.layers[0]
    for name in rows:
        layer.write(name, torch.arange(20 * PAGE), torch.randn(20 * PAGE, *rows[name]))
    step = StepBuffers(200, 8, 8, torch.device("cpu")).fill(chunks)
    q = torch.randn(len(step.tokens), HEADS, SIZE)
    size = SIZE if kv_heads else 6
    counts = tokens_read(step.positions.numpy(), np.ones(len(q), bool), window, sparsity)
    out = sparse_attend(q, SparseRows(*names, size, counts, torch.from_numpy(counts)), layer, step, SCALE, window)
    row = 0
    for chunk in chunks:
        table = torch.tensor(chunk.tables[0])
        k, v = (layer.read(name, table, torch.float32).flatten(0, 1).view(-1, max(kv_heads, 1), SIZE) for name in names)
        for position in range(chunk.start, chunk.start + len(chunk.tokens)):
            for head in range(HEADS):
                group = head * max(kv_heads, 1) // HEADS
                visible = position if window is None else min(position, window - 1)
                expected = plain(
                    q[row, head], k[:, group], v[:, group, :size], position, int(sparsity * visible), window
                )
                torch.testing.assert_close(out[row, head], expected)
            row += 1


def test_prompts_read_all_tokens_and_generated_ones_a_share():
    positions, generated = np.array([0, 9, 10, 50, 99]), np.array([False, False, True, True, True])
    assert tokens_read(positions, generated, None, 0.25).tolist() == [0, 9, 2, 12, 24]
    assert tokens_read(positions, generated, 21, 0.25).tolist() == [0, 9, 2, 5, 5]

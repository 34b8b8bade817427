"""Prefill attention against float64: small in Triton's interpreter, larger on a GPU."""

import pytest
import torch
from kernels.triton.paged_cache import draw, error, expected, layer

from genwright.kernels.triton.prefill_attention import Tile, prefill_attention
from genwright.text.config import Attention
from genwright.text.ops.step import Chunk, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

BOUND = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}  # of what is larger, 1 or the value
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Tile(64, 64, 4, 1)


def run(q, cache, counts, scale, window=None, tile=None):
    offsets = torch.tensor([0, *counts], device=q.device).cumsum(0)
    return prefill_attention(
        q, **cache, offsets=offsets, max_queries=max(counts), scale=scale, window=window, tile=tile
    )


def check(lengths, counts, heads, kv_heads, head_dim, dtype, window=None, tile=None):
    cache = draw(lengths, kv_heads, head_dim, dtype, DEVICE)
    q = torch.randn(sum(counts), heads, head_dim).to(dtype).to(DEVICE)
    truth = expected(q, **cache, counts=counts, scale=head_dim**-0.5, window=window)
    out = run(q, cache, counts, head_dim**-0.5, window, tile)
    assert error(out, truth) < BOUND[dtype]


@pytest.mark.parametrize(("share", "head_dim"), [(1, 80), (3, 96), (4, 64)])
def test_ragged_chunks_equal_float64(share, head_dim):
    check([1, 63, 64, 65, 200], [1, 63, 5, 33, 70], share, 1, head_dim, torch.float32, tile=SMALL)


@pytest.mark.parametrize("window", [1, 40, 64, 150])
def test_keys_before_the_window_are_masked(window):
    check([70, 230], [70, 40], 2, 1, 64, torch.float32, window, tile=SMALL)


def test_half_precision_equals_float64():
    check([100, 65], [100, 2], 2, 1, 64, torch.float16)


def test_a_padding_sequence_writes_nothing():
    check([0, 70, 0], [0, 7, 0], 2, 1, 64, torch.float32)


@pytest.mark.parametrize("window", [None, 40])
def test_padding_tokens_attend_to_nothing(window):
    cache = draw([70, 0], 1, 64, torch.float32, DEVICE)
    q = torch.randn(7 + 130, 2, 64, device=DEVICE)
    out = run(q, cache, [7, 130], 0.125, window, SMALL)
    assert out[:7].all() and not out[7:].any()


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_equals_the_reference_on_a_step(bits):
    step = StepBuffers(64, 4, 2, torch.device(DEVICE)).fill([Chunk(range(40), 50, [[3, 1]]), Chunk([7, 8], 0, [[2]])])
    cache = layer(4, 1, 80, torch.float32, bits, DEVICE)
    q = torch.randn(42, 2, 80, device=DEVICE)
    k, v = cache.rows["k"], cache.rows["v"]
    places = (step.page_tables[0], step.lengths, step.offsets)
    out = prefill_attention(q, k, v, *places, 40, 0.125, 30, cache.rows, SMALL)
    torch.testing.assert_close(out, TorchOps().attend(q, Attention(0.125, 30), cache, step), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 70])
def test_bits_do_not_depend_on_the_chunk_or_the_batch(window):
    dtype, heads, length = (torch.bfloat16, 8, 500) if DEVICE == "cuda" else (torch.float16, 2, 140)
    cache = draw([length, length], heads // 2, 64, dtype, DEVICE)
    q = torch.randn(2 * length, heads, 64).to(dtype).to(DEVICE)
    whole = run(q, cache, [length, length], 0.125, window)
    for first in (0, 1, 37, length - 1):  # then the rest of the sequence as one chunk, of it alone
        one = {name: rows[1:] if name in ("page_table", "lengths") else rows for name, rows in cache.items()}
        rest = run(q[length + first :], one, [length - first], 0.125, window)
        if DEVICE == "cuda":
            assert torch.equal(rest, whole[length + first :])
        else:  # the interpreter multiplies by numpy, whose bits depend on the row on some processors
            torch.testing.assert_close(rest, whole[length + first :], atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "dtype"),
    [
        (32, 32, 128, None, torch.bfloat16),
        (32, 8, 128, 128, torch.bfloat16),
        (6, 2, 64, None, torch.float16),
        (8, 8, 80, None, torch.bfloat16),
        (8, 1, 96, 128, torch.float16),
        (8, 4, 256, None, torch.bfloat16),
        (8, 2, 64, None, torch.float32),
        (8, 4, 256, None, torch.float32),
    ],
)
def test_equals_float64_at_size(heads, kv_heads, head_dim, window, dtype):
    for lengths, counts in (([2048], [2048]), ([1, 63, 64, 65, 300, 1500], [1, 60, 64, 1, 290, 700])):
        check(lengths, counts, heads, kv_heads, head_dim, dtype, window)


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_caches_at_size(bits):
    chunks = [
        Chunk(range(700), 300, [range(16)]),
        Chunk([1], 64, [range(16, 18)]),
        Chunk(range(65), 0, [range(18, 20)]),
    ]
    step = StepBuffers(1000, 4, 16, torch.device("cuda")).fill(chunks)
    cache = layer(20, 4, 128, torch.bfloat16, bits, "cuda")
    q = torch.randn(766, 16, 128, device="cuda", dtype=torch.bfloat16)
    k, v = cache.rows["k"], cache.rows["v"]
    places = (step.page_tables[0], step.lengths, step.offsets)
    out = prefill_attention(q, k, v, *places, 700, 0.1, None, cache.rows)
    wide = TorchOps().attend(q.float(), Attention(0.1), cache, step)
    assert error(out, wide) < BOUND[torch.bfloat16]

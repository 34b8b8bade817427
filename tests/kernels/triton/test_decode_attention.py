"""Decode attention against float64: small in Triton's interpreter, larger on a GPU."""

import pytest
import torch
from kernels.triton.paged_cache import draw, error, expected, layer

from genwright.kernels.triton.decode_attention import DecodeScratch, decode_attention
from genwright.kernels.triton.prefill_attention import Tile
from genwright.text.config import Attention
from genwright.text.ops.step import Chunk, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

# The interpreter treats bf16 as 16-bit integers in tl.dot, so bf16 is only tested on a GPU.
BOUND = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}  # of what is larger, 1 or the value
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def check(lengths, queries, heads, kv_heads, head_dim, dtype, window=None, programs=528, tile=None, launches=1):
    cache = draw(lengths, kv_heads, head_dim, dtype, DEVICE)
    q = torch.randn(len(lengths) * queries, heads, head_dim).to(dtype).to(DEVICE)
    scratch = DecodeScratch.allocate(heads // kv_heads * queries, head_dim, q.device)
    scale = head_dim**-0.5
    for _ in range(launches):
        out = decode_attention(
            q, **cache, queries=queries, scale=scale, window=window, scratch=scratch, tile=tile, programs=programs
        )
    truth = expected(q, **cache, counts=[queries] * len(lengths), scale=scale, window=window)
    assert error(out, truth) < BOUND[dtype]
    assert not scratch.arrivals.any()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 300])
def test_equals_float64_at_every_length(length):
    check([length], 1, 4, 1, 64, torch.float16)


@pytest.mark.parametrize(
    ("share", "queries", "head_dim"), [(1, 1, 80), (3, 2, 96), (4, 6, 80), (8, 3, 64), (1, 8, 256)]
)
def test_equals_float64_for_shared_heads_and_several_queries(share, queries, head_dim):
    check([queries, 130], queries, 2 * share, 2, head_dim, torch.float32, tile=Tile(1, 64, 4, 1))


@pytest.mark.parametrize("window", [1, 50, 64, 200])
def test_keys_before_the_window_are_masked(window):
    check([1 + window, 280], 2, 4, 2, 64, torch.float32, window, tile=Tile(1, 32, 4, 1))


@pytest.mark.parametrize("programs", [1, 3, 6, 528])
def test_the_result_does_not_depend_on_the_splits(programs):
    check([300, 70], 1, 3, 1, 64, torch.float32, programs=programs, tile=Tile(1, 32, 4, 1), launches=2)


def test_an_empty_sequence_gives_zeros():
    check([0, 70, 0], 1, 2, 1, 64, torch.float32)


@pytest.mark.parametrize("bits", [None, 8, 4])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_equals_the_reference_on_a_step(bits, head_dim):
    step = StepBuffers(8, 4, 2, torch.device(DEVICE)).fill([Chunk([5, 6], 70, [[3, 1]]), Chunk([7, 8], 0, [[2]])])
    cache = layer(4, 2, head_dim, torch.float32, bits, DEVICE)
    q = torch.randn(4, 6, head_dim, device=DEVICE)
    scratch = DecodeScratch.allocate(6, head_dim, q.device)
    k, v = cache.rows["k"], cache.rows["v"]
    out = decode_attention(q, k, v, step.page_tables[0], step.lengths, 2, 0.125, None, scratch, cache.rows)
    torch.testing.assert_close(out, TorchOps().attend(q, Attention(0.125, None), cache, step), atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "queries", "window", "dtype"),
    [
        (32, 32, 128, 1, None, torch.bfloat16),
        (32, 8, 128, 1, None, torch.bfloat16),
        (32, 8, 128, 6, None, torch.bfloat16),
        (28, 4, 128, 8, 128, torch.bfloat16),
        (24, 8, 64, 1, 128, torch.float16),
        (32, 32, 80, 2, None, torch.float16),
        (32, 4, 96, 1, None, torch.bfloat16),
        (8, 4, 256, 1, None, torch.bfloat16),
        (8, 2, 128, 3, None, torch.float32),
        (8, 4, 256, 1, None, torch.float32),
    ],
)
def test_equals_float64_at_size(heads, kv_heads, head_dim, queries, window, dtype):
    for lengths in ([206], [8192], [1, 63, 64, 65, 300, 0, 1000, 4097], [512] * 64):
        at_least = [length and max(length, queries) for length in lengths]
        check(at_least, queries, heads, kv_heads, head_dim, dtype, window, launches=3)


@pytest.mark.gpu
def test_a_captured_launch_follows_the_lengths():
    cache = draw([2048, 2048], 8, 128, torch.bfloat16, "cuda")
    q = torch.randn(2, 32, 128, device="cuda", dtype=torch.bfloat16)
    scratch = DecodeScratch.allocate(4, 128, q.device)

    def launch():
        return decode_attention(q, **cache, queries=1, scale=0.1, window=None, scratch=scratch, pdl=True)

    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launch()
    for lengths in ([2048, 2048], [1, 700], [0, 65]):
        cache["lengths"].copy_(torch.tensor(lengths))
        graph.replay()
        truth = expected(q, **cache, counts=[1, 1], scale=0.1, window=None)
        assert error(out, truth) < BOUND[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("head_dim", [80, 128])
def test_quantized_caches_at_size(bits, head_dim):
    lengths = [3, 700, 64, 1999]
    chunks = [Chunk([1, 2, 3], length - 3, [range(32 * i, 32 * i + 32)]) for i, length in enumerate(lengths)]
    step = StepBuffers(12, 4, 32, torch.device("cuda")).fill(chunks)
    cache = layer(128, 4, head_dim, torch.bfloat16, bits, "cuda")
    q = torch.randn(12, 16, head_dim, device="cuda", dtype=torch.bfloat16)
    scratch = DecodeScratch.allocate(12, head_dim, q.device)
    k, v = cache.rows["k"], cache.rows["v"]
    out = decode_attention(q, k, v, step.page_tables[0], step.lengths, 3, 0.1, None, scratch, cache.rows)
    wide = TorchOps().attend(q.float(), Attention(0.1), cache, step)
    assert error(out, wide) < BOUND[torch.bfloat16]

"""Latent attention against its definition in float64: small in Triton's interpreter, larger on a GPU."""

import numpy as np
import pytest
import torch
from kernels.triton.paged_cache import error

from genwright.kernels import PAGE
from genwright.kernels.triton.latent_attention import PROGRAMS, LatentScratch, LatentTile, attend
from genwright.kernels.triton.latent_queries import LatentShape, absorb
from genwright.text.ops.rope import cos_sin

# The interpreter treats bf16 as 16-bit integers in tl.dot, so bf16 is only tested on a GPU.
BOUND = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of what is larger, 1 or the value
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = LatentShape(heads=3, nope=12, rope=8, value=10, rank=24, interleaved=True)
EPS = 1e-6


def draw(lengths, queries, shape, dtype):
    """The inputs of both functions; slots of other tokens are NaN."""
    width, tokens, row = max(1, -(-max(lengths) // PAGE)), len(lengths) * queries, shape.rank + shape.rope
    table = torch.randperm(len(lengths) * width).view(len(lengths), width)
    latents = torch.full((len(lengths) * width, PAGE, row), torch.nan, dtype=dtype)
    positions, slots = torch.zeros(tokens, dtype=torch.int64), torch.full((tokens,), -1)
    for i, (pages, length) in enumerate(zip(table, lengths, strict=True)):
        places = torch.arange(length)
        flat = pages[places // PAGE] * PAGE + places % PAGE
        latents.flatten(0, 1)[flat[: length - queries]] = torch.randn(max(0, length - queries), row).to(dtype)
        if length:
            positions[i * queries : (i + 1) * queries] = places[-queries:]
            slots[i * queries : (i + 1) * queries] = flat[-queries:]
    tables = cos_sin(1 / 100.0 ** torch.arange(0, 1, 2 / shape.rope), 1.0, torch.arange(width * PAGE))
    rows = torch.randn(tokens, shape.heads * (shape.nope + shape.rope) + row).to(dtype)  # one product makes both
    q, kv = rows.to(DEVICE).split((rows.shape[1] - row, row), dim=1)
    kv_b = (torch.randn(shape.heads * (shape.nope + shape.value), shape.rank) * shape.nope**-0.5).to(dtype)
    norm = (torch.rand(shape.rank) + 0.5).to(dtype)
    moved = [value.to(DEVICE) for value in (norm, kv_b, positions, slots, latents, table, torch.tensor(lengths))]
    return q, kv, tuple(each.to(DEVICE) for each in tables), *moved


def rotated(x, cos, sin, interleaved):
    x1, x2 = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


def definition(q, kv, tables, norm, kv_b, positions, slots, latents, table, lengths, scale, shape):
    """The new rows of the cache [tokens, rank + rope], and the outputs, from the cache that holds them."""
    cos, sin = (each.double()[positions, 0] for each in tables)
    content, key = kv.double().split((shape.rank, shape.rope), dim=1)
    content = content * (content.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm.double()
    rows = torch.cat((content, rotated(key, cos, sin, shape.interleaved)), dim=1)
    q = q.double().unflatten(1, (shape.heads, -1))
    nope, rope = q.split((shape.nope, shape.rope), dim=2)
    rope = rotated(rope, cos[:, None], sin[:, None], shape.interleaved)
    up = kv_b.double().unflatten(0, (shape.heads, -1))
    out, queries = [], len(q) // len(lengths)
    for i, length in enumerate(lengths.tolist()):
        own, cached = slice(i * queries, (i + 1) * queries), latents[table[i]].flatten(0, 1)[:length].double()
        keys, values = torch.einsum("lc,hnc->lhn", cached[:, : shape.rank], up).split((shape.nope, shape.value), dim=2)
        scores = torch.einsum("thn,lhn->thl", nope[own], keys)
        scores += torch.einsum("thr,lr->thl", rope[own], cached[:, shape.rank :])
        hidden = torch.arange(length, device=DEVICE) > positions[own, None, None]
        share = (scores * scale).masked_fill(hidden, -torch.inf).softmax(-1)
        out.append(torch.einsum("thl,lhv->thv", share, values))  # zeros if the sequence is empty
    out = torch.cat(out)
    return rows, out.flatten(1)


def check(lengths, shape=SMALL, dtype=torch.float32, queries=1, programs=PROGRAMS, tile=None, launches=1):
    torch.manual_seed(len(lengths))
    scale = (shape.nope + shape.rope) ** -0.5
    q, kv, tables, norm, kv_b, positions, slots, latents, table, sizes = draw(lengths, queries, shape, dtype)
    scratch = LatentScratch.allocate(queries * shape.heads, shape.rank, q.device)
    for _ in range(launches):
        absorbed = absorb(q, kv, norm, kv_b, tables, positions, slots, latents, EPS, shape)
        out = attend(absorbed, latents, kv_b, table, sizes, scale, scratch, shape, tile, programs)
    rows, truth = definition(q, kv, tables, norm, kv_b, positions, slots, latents, table, sizes, scale, shape)
    written = slots >= 0
    assert error(latents.flatten(0, 1)[slots[written]], rows[written]) < BOUND[dtype]
    assert error(out, truth) < BOUND[dtype]


@pytest.mark.parametrize("length", [1, 15, 63, 64, 65, 200])
def test_equals_float64_at_every_length(length):
    check([length], tile=LatentTile(16, 32, 4, 1))


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("queries", [1, 3])
def test_several_queries_and_sequences_and_an_empty_one(queries, interleaved):
    shape = LatentShape(6, 16, 16, 32, 40, interleaved)
    check([queries, 70, 0, 130], shape, queries=queries, tile=LatentTile(16, 32, 4, 1))


@pytest.mark.parametrize("programs", [1, 4, 9, PROGRAMS])
def test_the_result_does_not_depend_on_the_splits(programs):
    check([200, 40], programs=programs, tile=LatentTile(16, 16, 4, 1), launches=2)


@pytest.mark.parametrize("programs", [1, 40])
def test_many_tokens_are_projected_together(programs):
    check([70, *[5] * 19], programs=programs, tile=LatentTile(16, 32, 4, 1))


def check_bits(lengths, shape, dtype):
    """Sequences give the same bits together and in parts."""
    q, kv, tables, norm, kv_b, positions, slots, latents, table, sizes = draw(lengths, 1, shape, dtype)
    scratch = LatentScratch.allocate(shape.heads, shape.rank, q.device)

    def run(first, end):
        inputs = q[first:end], kv[first:end], norm, kv_b, tables, positions[first:end], slots[first:end], latents
        absorbed = absorb(*inputs, EPS, shape, deterministic=True)
        return attend(
            absorbed, latents, kv_b, table[first:end], sizes[first:end], 0.2, scratch, shape, deterministic=True
        )

    whole = run(0, len(lengths))
    for size in (1, 7, 17):
        parts = [run(i, min(i + size, len(lengths))) for i in range(0, len(lengths), size)]
        assert torch.equal(torch.cat(parts), whole), size


def test_a_tokens_bits_do_not_depend_on_the_others(monkeypatch):
    if DEVICE == "cpu":
        product = np.matmul  # of the interpreter; in float32 a row's bits depend on its place
        exact = lambda a, b, dtype: product(a.astype(np.float64), b.astype(np.float64)).astype(dtype)  # noqa: E731
        monkeypatch.setattr(np, "matmul", exact)
    check_bits([*range(1, 19), 70, 130], SMALL, torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("heads", [16, 128])
def test_a_tokens_bits_at_size(heads, dtype):
    check_bits([*range(1, 60), 300, 4097], LatentShape(heads, 128, 64, 128, 512, True), dtype)


def test_float16():
    check([100, 3], dtype=torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("queries", [1, 4])
def test_equals_float64_at_size(heads, queries, dtype):
    shape = LatentShape(heads, 128, 64, 128, 512, True)
    for lengths in ([206], [8192], [4, 63, 64, 65, 300, 0, 1000, 4097], [300] * 64):
        check(lengths, shape, dtype, queries, launches=2)

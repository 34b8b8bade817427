"""RoPE, cache write and attention of one token in one kernel, against float64."""

import pytest
import torch
from kernels.products import SMALL

from genwright.kernels import PAGE
from genwright.kernels.cuda.decode_attention import Scratch, rope_attend, serves
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.rope import rotate

SHAPES = [(4, 4, 128), (8, 2, 128), (9, 3, 64), (16, 2, 64), (2, 1, 256), (4, 2, 32)]
SHAPES += [] if SMALL else [(32, 8, 128), (32, 32, 128), (128, 32, 64), (256, 32, 64)]  # more blocks than processors
MANY, LONG, HEADS = (40, 1800, 4) if SMALL else (300, 9000, 32)  # sequences, tokens of one, and query heads


def expected(qkv, cos, sin, positions, cache, table, lengths, norms, heads, scale, window):
    """Attention in float64 over the cache after the write."""
    kv_heads, head_dim = cache["k"].shape[2:]
    rows = qkv.view(len(qkv), -1, head_dim)
    q, k, v = rows.split((heads, kv_heads, kv_heads), dim=1)
    if norms is not None:
        q, k = rms_norm(q, norms[0], 1e-5), rms_norm(k, norms[1], 1e-5)
    q, k = (rotate(x, cos[positions], sin[positions]) for x in (q, k))
    out = torch.zeros(len(qkv), heads, head_dim, dtype=torch.float64, device=qkv.device)
    for b, length in enumerate(lengths.tolist()):
        if not length:
            continue
        pages = table[b, : -(-length // PAGE)]
        keys, values = (cache[name][pages].flatten(0, 1)[:length].double().clone() for name in ("k", "v"))
        keys[-1], values[-1] = k[b].double(), v[b].double()
        first = max(0, length - window) if window else 0
        share = heads // kv_heads
        for h in range(heads):
            scores = keys[first:, h // share] @ q[b, h].double() * scale
            out[b, h] = scores.softmax(dim=0) @ values[first:, h // share]
    return out.flatten(1), k, v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("window", "normed"), [(None, False), (100, True)])
def test_attention_and_the_written_rows(device, dtype, shape, window, normed):
    check(device, [1, 2, 63, 64, 65, 206, 0, 300 if SMALL else 1500], dtype, shape, window, normed)


# One long sequence among many: blocks of split sequences, of whole ones and of none.
RAGGED = [n * 37 % 300 for n in range(MANY // 4)]
RAGGED[len(RAGGED) * 8 // 15] = LONG
DIVISIONS = [RAGGED, [LONG, *RAGGED[:3]], [200] * MANY, [0, 0], [LONG * 5 // 9], [64]]


@pytest.mark.parametrize("shape", [(HEADS, HEADS // 4, 128), (4, 4, 128), (8, 1, 64)], ids=str)
@pytest.mark.parametrize("lengths", DIVISIONS, ids=len)
@pytest.mark.parametrize("window", [None, 150])
def test_work_is_divided_among_blocks(device, lengths, shape, window):
    check(device, lengths, torch.bfloat16, shape, window, normed=False)


def check(device, lengths, dtype, shape, window, normed):
    heads, kv_heads, head_dim = shape
    width = max(1, -(-max(lengths) // PAGE))
    lengths = torch.tensor(lengths, device=device)
    table = torch.randperm(len(lengths) * width, device=device).view(len(lengths), width)
    cache = {n: torch.randn(table.numel(), PAGE, kv_heads, head_dim, device=device, dtype=dtype) for n in ("k", "v")}
    if not serves(cache["k"], heads):
        pytest.skip("the kernel does not support this shape")
    positions = (lengths - 1).clamp(min=0)
    slots = table[torch.arange(len(lengths)), positions // PAGE] * PAGE + positions % PAGE
    slots[lengths == 0] = -1
    qkv = torch.randn(len(lengths), (heads + 2 * kv_heads) * head_dim, device=device, dtype=dtype)
    angles = torch.rand(width * PAGE, 1, head_dim // 2, device=device) * 6
    norms = tuple(torch.rand(2, head_dim, device=device).to(dtype) + 0.5) if normed else None
    tables, scale = (angles.cos(), angles.sin()), head_dim**-0.5
    want, k, v = expected(qkv, *tables, positions, cache, table, lengths, norms, heads, scale, window)
    before = {name: rows.clone() for name, rows in cache.items()}
    scratch = Scratch.allocate(heads // kv_heads, head_dim, qkv.device)
    for _ in range(2):  # the second time, what the first left behind must do no harm
        got = rope_attend(
            qkv, tables, positions, slots, lengths, table, *cache.values(), norms, 1e-5, heads, scale, window, scratch
        )
        error = (got.double() - want).norm() / want.norm().clamp(min=1e-9)
        assert error < {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]
    live = lengths > 0
    for name, rows in (("k", k), ("v", v)):
        written = cache[name].flatten(0, 1)
        close = 0.01 if dtype == torch.bfloat16 else 2e-3 if dtype == torch.float16 else 1e-6
        torch.testing.assert_close(written[slots[live]], rows[live], rtol=close, atol=close)
        written[slots[live]] = before[name].flatten(0, 1)[slots[live]]
        assert torch.equal(cache[name], before[name]), "no other row changed"
    assert not scratch.arrivals.any()

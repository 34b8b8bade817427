"""The CPU attention kernel against float64; a sequence's bits do not depend on the batch."""

import ctypes

import pytest
import torch

from genwright.kernels.cpu import attention, build
from genwright.kernels.cpu.amx import cpu_flags
from genwright.kernels.cpu.attention import kernel, paged_attention, rope_write
from genwright.text.ops.rope import cos_sin, rotate

PAGE = 16
needs_kernel = pytest.mark.skipif(kernel("Float32", 64, PAGE) is None, reason="no C++ compiler")


def cache(lengths, kv_heads, dim, dtype):
    """Random keys and values on shuffled pages, and a page table with unused columns."""
    width = -(-max(lengths) // PAGE) + 2
    order = torch.randperm(len(lengths) * width)
    k, v = torch.randn(2, len(order), PAGE, kv_heads, dim).to(dtype)
    return k, v, order.view(len(lengths), width)[:, : width - 2]


def exact(q, k, v, pages, lengths, scale, window):
    rows, heads, _ = q.shape
    queries = rows // len(lengths)
    out = []
    for row in range(rows):
        sequence, j = divmod(row, queries)
        end = int(lengths[sequence]) - queries + 1 + j
        seen = slice(max(0, end - window) if window else 0, end)
        keys, values = (
            x[pages[sequence]].flatten(0, 1)[seen].repeat_interleave(heads // x.shape[2], dim=1).double()
            for x in (k, v)
        )
        p = (torch.einsum("hd,nhd->hn", q[row].double(), keys) * scale).softmax(dim=1)
        out.append(torch.einsum("hn,nhd->hd", p, values))
    return torch.stack(out)


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 16), (8, 1, 128), (2, 2, 240)])
@pytest.mark.parametrize("window", [None, 5, 40])
def test_attention_equals_float64(heads, kv_heads, dim, dtype, window):
    torch.manual_seed(heads)
    for lengths, queries in (([1], 1), ([16, 17, 300], 1), ([50, 8, 33], 3), ([41], 41), ([100, 37], 29)):
        k, v, pages = cache(lengths, kv_heads, dim, dtype)
        q = 3 * torch.randn(len(lengths) * queries, heads, dim).to(dtype)  # so that some keys matter much more
        given = (k, v, pages, torch.tensor(lengths), dim**-0.5, window)
        mixed = paged_attention(q, *given)
        assert mixed.dtype == dtype
        error = (mixed.double() - exact(q, *given)).abs().max()
        assert error < (1e-5 if dtype == torch.float32 else 2e-2), (lengths, queries)


@needs_kernel
def test_bits_do_not_depend_on_the_batch_or_the_threads():
    torch.manual_seed(0)
    lengths = torch.tensor([5, 129, 64])
    k, v, pages = cache(lengths.tolist(), 2, 64, torch.float32)
    q = torch.randn(6, 4, 64)
    alone = [
        paged_attention(q[2 * i : 2 * i + 2], k, v, pages[i : i + 1], lengths[i : i + 1], 0.1, None) for i in range(3)
    ]
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(paged_attention(q, k, v, pages, lengths, 0.1, None), torch.cat(alone))
    finally:
        torch.set_num_threads(threads)


@needs_kernel
@pytest.mark.parametrize("flags", ["-mno-avx512bf16", "-mno-avx512f", "-mno-avx2 -mno-avx512f -mno-fma -mno-f16c"])
def test_each_instruction_set(flags, monkeypatch, tmp_path):
    """The kernel compiled without the processor's newer instructions."""
    if "avx2" not in cpu_flags():
        pytest.skip("the processor is not an x86-64 with AVX2")
    quick = ["-O1" if flag == "-O3" else flag for flag in build.FLAGS]
    monkeypatch.setattr(build, "FLAGS", (*quick, *flags.split()))
    defines = {"FORMAT": "Bf16", "DIM": 48, "PAGE": PAGE}
    limited = ctypes.CDLL(str(build.build(tmp_path, "attention", **defines)))
    monkeypatch.setattr(attention, "kernel", lambda *kind: limited)
    torch.manual_seed(0)
    for lengths, queries in (([40, 21], 1), ([50, 33], 19)):
        given = (*cache(lengths, 2, 48, torch.bfloat16), torch.tensor(lengths), 0.1, None)
        q = torch.randn(len(lengths) * queries, 6, 48).bfloat16()
        assert (paged_attention(q, *given).double() - exact(q, *given)).abs().max() < 2e-2


@needs_kernel
def test_nan_is_kept_and_unseen_keys_are_ignored():
    k, v, pages = cache([40, 40], 1, 16, torch.float32)
    lengths = torch.tensor([20, 20])
    k[pages[0, 1], 4:] = v[pages[0, 1], 4:] = float("nan")  # behind the sequence's end
    k[pages[1, 0], 3] = float("nan")
    mixed = paged_attention(torch.randn(2, 2, 16), k, v, pages, lengths, 1.0, None)
    assert mixed[0].isfinite().all() and mixed[1].isnan().all()


def test_unsupported_inputs_return_none():
    k, v, pages = cache([20], 1, 16, torch.float32)
    given = (pages, torch.tensor([20]), 1.0, None)
    assert paged_attention(torch.randn(1, 2, 16).bfloat16(), k, v, *given) is None
    assert paged_attention(torch.randn(1, 2, 16).double(), k.double(), v.double(), *given) is None
    assert paged_attention(torch.randn(1, 2, 16), k, v, pages.int(), *given[1:]) is None
    assert paged_attention(torch.randn(1, 2, 24), *(torch.randn(9, PAGE, 1, 24) for _ in "kv"), *given) is None


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 16), (3, 1, 240)])
def test_rope_and_cache_write_equal_torch(heads, kv_heads, dim, dtype):
    """Bit for bit, because other tokens of the prompt are computed by torch."""
    torch.manual_seed(dim)
    k, v, _ = cache([64, 64], kv_heads, dim, dtype)
    tables = cos_sin(0.5 ** torch.arange(dim // 2), 1.1, torch.arange(100))
    for tokens in (1, 5, 100):
        qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim).to(dtype)
        positions, slots = torch.randint(100, (tokens,)), torch.randperm(k.shape[0] * PAGE)[:tokens]
        want_k, want_v = k.clone(), v.clone()
        parts = qkv.view(tokens, -1, dim)
        rotated = rotate(parts[:, :-kv_heads], tables[0][positions], tables[1][positions])
        want_k.flatten(0, 1)[slots] = rotated[:, heads:]
        want_v.flatten(0, 1)[slots] = parts[:, -kv_heads:]
        assert torch.equal(rope_write(qkv, tables, positions, slots, k, v), rotated[:, :heads])
        assert torch.equal(k, want_k) and torch.equal(v, want_v)
    assert rope_write(qkv.double(), tables, positions, slots, k, v) is None

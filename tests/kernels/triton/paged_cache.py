"""Sequences on shuffled pages, and attention over them in float64."""

import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.text.cache.layout import Cache, CacheSpec, LayerCache, LayerSpec


def draw(lengths: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Caches, page table and lengths; slots outside the sequences are NaN."""
    width = max(1, -(-max(lengths) // PAGE))
    table = torch.randperm(len(lengths) * width).view(len(lengths), width)
    caches = torch.full((2, len(lengths) * width, PAGE, kv_heads, head_dim), torch.nan, dtype=dtype)
    for row, length in zip(table, lengths, strict=True):
        for page, first in zip(row.tolist(), range(0, length, PAGE), strict=False):
            caches[:, page, : length - first] = torch.randn(2, min(PAGE, length - first), kv_heads, head_dim).to(dtype)
    k, v = caches.to(device)
    return {"k_cache": k, "v_cache": v, "page_table": table.to(device), "lengths": torch.tensor(lengths, device=device)}


def expected(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    counts: list[int],
    scale: float,
    window: int | None,
) -> Tensor:
    """softmax(q k^T * scale) v in float64; counts[b] queries, sequence b's last: [tokens, heads * head_dim]."""
    outs, share = [], q.shape[1] // k_cache.shape[2]
    for rows, pages, length in zip(q.double().split(counts), page_table, lengths.tolist(), strict=True):
        k, v = (
            cache[pages].flatten(0, 1)[:length].double().repeat_interleave(share, dim=1) for cache in (k_cache, v_cache)
        )
        position = torch.arange(length - len(rows), length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)
        hidden = (key > position) if window is None else (key > position) | (key <= position - window)
        scores = torch.einsum("qhd,khd->hqk", rows, k) * scale
        shares = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        outs.append(torch.einsum("hqk,khd->qhd", shares, v) if length else torch.zeros_like(rows))
    return torch.cat(outs).flatten(1)


def error(out: Tensor, truth: Tensor) -> float:
    """The largest error, relative where the expected value exceeds 1."""
    return ((out.double() - truth.double()).abs() / truth.double().abs().clamp(min=1)).max().item()


def layer(pages: int, kv_heads: int, head_dim: int, dtype: torch.dtype, bits: int | None, device: str) -> LayerCache:
    """A layer's cache with random rows in every slot."""
    spec = CacheSpec([LayerSpec(dict.fromkeys(("k", "v"), (kv_heads, head_dim)))], dtype, bits)
    cache = Cache(spec, pages, torch.device(device)).layers[0]
    for name in ("k", "v"):
        cache.write(
            name,
            torch.arange(pages * PAGE, device=device),
            torch.randn(pages * PAGE, kv_heads, head_dim).to(device, dtype),
        )
    return cache

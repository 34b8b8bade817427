"""Attention of a few queries per sequence over a paged cache, and the write to it before: small C++ kernels.

They are compiled when they are first needed, for a type of cache and the sizes of heads and pages.
"""

import ctypes
from functools import cache

import torch

from genwright.kernels.cpu.build import library

FORMATS = {torch.float32: "Float32", torch.bfloat16: "Bf16"}
MOST_QUERIES = 8  # with more, torch's attention reads keys less often
MOST_ROTATED = 48  # tokens: more are worth torch's threads
MOST_DIM = 256  # of a head: it is held in registers


class Attention(ctypes.Structure):
    """`Attention` of attention.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "pages", "lengths", "out")),
        *((name, ctypes.c_int64) for name in ("sequences", "queries", "heads", "kv_heads", "width", "window")),
        ("scale", ctypes.c_float),
    )


class Rotation(ctypes.Structure):
    """`Rotation` of attention.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "cos", "sin", "positions", "slots", "q", "k", "v")),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "kv_heads")),
    )


def rope_write(
    qkv: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    slots: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> torch.Tensor | None:
    """q, rotated, of few tokens, whose k, rotated too, and v go to their slots; None without a kernel for it.

    qkv [tokens, (heads + 2 kv_heads) * head_dim], tables cos and sin [context, 1, head_dim / 2] in float32, positions
    and slots [tokens], k and v [pages, PAGE, kv_heads, head_dim]. Returns [tokens, heads, head_dim].
    """
    tokens, kv_heads, dim = len(qkv), *k.shape[2:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    given = (qkv, *tables, positions, slots, k, v)
    if tokens > MOST_ROTATED or not qkv.is_cpu or not all(tensor.is_contiguous() for tensor in given):
        return None
    if not qkv.dtype == k.dtype == v.dtype or v.shape != k.shape or 2 * tables[0].shape[-1] != dim:
        return None
    found = _kernel_for(k)
    if found is None:
        return None
    q = qkv.new_empty(tokens, heads, dim)
    pointers = (tensor.data_ptr() for tensor in (qkv, *tables, positions, slots, q, k, v))
    found.rotate(Rotation(*pointers, tokens, heads, kv_heads))
    return q


def few_queries(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor | None:
    """softmax(q k^T * scale) v, causal, of the last tokens of each sequence, for inference; None without a kernel.

    q [sequences * queries, heads, head_dim], k and v [pages, PAGE, kv_heads, head_dim], pages [sequences, width] and
    lengths [sequences], which count the queries themselves.
    """
    rows, heads, dim = q.shape
    queries = rows // lengths.shape[0]
    if not q.is_cpu or queries > MOST_QUERIES or v.shape[-1] != dim:
        return None
    if not q.dtype == k.dtype == v.dtype or not (k.is_contiguous() and v.is_contiguous()):
        return None
    if not pages.dtype == lengths.dtype == torch.int64 or pages.stride(1) != 1 or not lengths.is_contiguous():
        return None
    found = _kernel_for(k)
    if found is None:
        return None
    q = q.contiguous()
    out = torch.empty_like(q)
    pointers = (tensor.data_ptr() for tensor in (q, k, v, pages, lengths, out))
    sizes = (lengths.shape[0], queries, heads, k.shape[2], pages.stride(0), window or 0)
    found.attend(Attention(*pointers, *sizes, scale), torch.get_num_threads())
    return out


def _kernel_for(cache: torch.Tensor) -> ctypes.CDLL | None:
    """Of pages [pages, PAGE, kv_heads, head_dim]."""
    page, _, dim = cache.shape[1:]
    if cache.dtype not in FORMATS or dim > MOST_DIM or dim % 16:
        return None
    return kernel(FORMATS[cache.dtype], dim, page)


@cache
def kernel(form: str, dim: int, page: int) -> ctypes.CDLL | None:
    """attention.cpp for a type of cache and the sizes of heads and pages, if it can be had."""
    found = library("attention", FORMAT=form, DIM=dim, PAGE=page)
    if found is not None:
        found.attend.argtypes = [ctypes.POINTER(Attention), ctypes.c_int]
        found.rotate.argtypes = [ctypes.POINTER(Rotation)]
    return found

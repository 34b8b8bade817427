"""Attention of a few queries per sequence over a paged cache: a small C++ kernel, compiled when it is first needed."""

import ctypes
from functools import cache

import torch

from genwright.kernels.cpu.compiled import library

FORMATS = {torch.float32: "Float32", torch.bfloat16: "Bf16"}
MOST_QUERIES = 8  # with more, torch's attention reads keys less often
MOST_DIM = 256  # of a head: it is held in registers


class Attention(ctypes.Structure):
    """`Attention` of attend.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "pages", "lengths", "out")),
        *((name, ctypes.c_int64) for name in ("sequences", "queries", "heads", "kv_heads", "width", "window")),
        ("scale", ctypes.c_float),
    )


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
    if not q.is_cpu or queries > MOST_QUERIES or dim > MOST_DIM or dim % 16 or v.shape[-1] != dim:
        return None
    if not q.dtype == k.dtype == v.dtype or q.dtype not in FORMATS or not (k.is_contiguous() and v.is_contiguous()):
        return None
    if not pages.dtype == lengths.dtype == torch.int64 or pages.stride(1) != 1 or not lengths.is_contiguous():
        return None
    found = kernel(FORMATS[q.dtype], dim, k.shape[1])
    if found is None:
        return None
    wide = q.float().contiguous()
    out = torch.empty_like(wide)
    pointers = (tensor.data_ptr() for tensor in (wide, k, v, pages, lengths, out))
    sizes = (lengths.shape[0], queries, heads, k.shape[2], pages.stride(0), window or 0)
    found.attend(Attention(*pointers, *sizes, scale), torch.get_num_threads())
    return out.to(q.dtype)


@cache
def kernel(form: str, dim: int, page: int) -> ctypes.CDLL | None:
    """attend.cpp for a type of cache and the sizes of heads and pages, if it can be had."""
    found = library("attend", FORMAT=form, DIM=dim, PAGE=page)
    if found is not None:
        found.attend.argtypes = [ctypes.POINTER(Attention), ctypes.c_int]
    return found

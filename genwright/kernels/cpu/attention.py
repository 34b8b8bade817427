"""C++ kernels for attention over a paged cache, and for RoPE with the cache write.

A kernel is compiled at first use for the cache's dtype, head size and page size.
"""

import ctypes
from functools import cache

import torch

from genwright.kernels.cpu.build import load_library
from genwright.kernels.cpu.calls import Progress, Recording, address, make_call, runner

FORMATS = {torch.float32: "Float32", torch.bfloat16: "Bf16"}
BLOCK = 16  # heads of queries that share the loads of keys and values; fewer if threads would have no work
MAX_DIM = 256  # of a head, which is held in registers


class Attention(ctypes.Structure):
    """`Attention` of attention.cpp."""

    _fields_ = (
        ("progress", Progress),
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "pages", "lengths", "out")),
        *((name, ctypes.c_int64) for name in ("sequences", "queries", "heads", "kv_heads", "width", "window", "block")),
        ("scale", ctypes.c_float),
    )


class Rotation(ctypes.Structure):
    """`Rotation` of attention.cpp."""

    _fields_ = (
        ("progress", Progress),
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
    recording: Recording | None = None,
) -> torch.Tensor | None:
    """Rotate q and k, write k and v to their slots, and return q; None if there is no kernel for these inputs.

    qkv [tokens, (heads + 2 kv_heads) * head_dim], tables cos and sin [context, 1, head_dim / 2] in float32, positions
    and slots [tokens], k and v [pages, PAGE, kv_heads, head_dim]. Returns [tokens, heads, head_dim].
    """
    tokens, kv_heads, dim = len(qkv), *k.shape[2:]
    heads = qkv.shape[1] // dim - 2 * kv_heads
    inputs = (qkv, *tables, positions, slots, k, v)
    if not qkv.is_cpu or not all(tensor.is_contiguous() for tensor in inputs):
        return None
    if not qkv.dtype == k.dtype == v.dtype or v.shape != k.shape or 2 * tables[0].shape[-1] != dim:
        return None
    library = _kernel_for(k)
    if library is None:
        return None
    q = qkv.new_empty(tokens, heads, dim)
    pointers = (tensor.data_ptr() for tensor in (qkv, *tables, positions, slots, q, k, v))
    arguments = Rotation(Progress(), *pointers, tokens, heads, kv_heads)
    make_call(address(library, "rotate_part"), arguments, tokens, recording, q, *inputs)
    return q


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int | None,
    recording: Recording | None = None,
) -> torch.Tensor | None:
    """Causal softmax(q k^T * scale) v of each sequence's last tokens; None if there is no kernel for these inputs.

    q [sequences * queries, heads, head_dim], k and v [pages, PAGE, kv_heads, head_dim], pages [sequences, width] and
    lengths [sequences], which include the queries.
    """
    rows, heads, dim = q.shape
    queries = rows // lengths.shape[0]
    if not q.is_cpu or v.shape[-1] != dim:
        return None
    if not q.dtype == k.dtype == v.dtype or not (k.is_contiguous() and v.is_contiguous()):
        return None
    if not pages.dtype == lengths.dtype == torch.int64 or pages.stride(1) != 1 or not lengths.is_contiguous():
        return None
    library = _kernel_for(k)
    if library is None:
        return None
    q = q.contiguous()
    out = torch.empty_like(q)
    pointers = (tensor.data_ptr() for tensor in (q, k, v, pages, lengths, out))
    sequences, kv_heads = lengths.shape[0], k.shape[2]
    block = max(1, min(BLOCK, rows * heads // (2 * torch.get_num_threads())))
    sizes = (sequences, queries, heads, kv_heads, pages.stride(0), window or 0, block)
    arguments = Attention(Progress(), *pointers, *sizes, scale)
    units = sequences * kv_heads * -(-queries * heads // kv_heads // block)
    make_call(address(library, "attend_part"), arguments, units, recording, q, k, v, pages, lengths, out)
    return out


def _kernel_for(cache: torch.Tensor) -> ctypes.CDLL | None:
    """The kernel for a cache [pages, PAGE, kv_heads, head_dim]."""
    page, _, dim = cache.shape[1:]
    if cache.dtype not in FORMATS or dim > MAX_DIM or dim % 16:
        return None
    return kernel(FORMATS[cache.dtype], dim, page)


@cache
def kernel(form: str, dim: int, page: int) -> ctypes.CDLL | None:
    """attention.cpp, compiled for a format, head size and page size; None if that is not possible."""
    return load_library("attention", FORMAT=form, DIM=dim, PAGE=page) if runner() is not None else None

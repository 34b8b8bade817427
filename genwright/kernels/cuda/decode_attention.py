"""Decode attention with one new token per sequence: RoPE, the write to the cache and attention in one launch."""

import math
from dataclasses import dataclass

import torch

from genwright.kernels import PAGE
from genwright.kernels.cuda.fused_linear import PLAIN
from genwright.kernels.cuda.nvrtc import compiled_kernel, multiprocessors

MAX_THREADS = 512
SHARED = 40 << 10  # bytes of shared memory in which the warps of a block merge their results
MAX_SHARE = 8  # query heads per key-value head; their queries are held in registers


@dataclass(frozen=True)
class Scratch:
    """Partial results of the blocks that split a sequence; consecutive launches on a stream reuse it."""

    parts: torch.Tensor
    arrivals: torch.Tensor  # zero between launches

    @staticmethod
    def allocate(share: int, head_dim: int, device: torch.device) -> "Scratch":
        blocks = 2 * torch.cuda.get_device_properties(device).multi_processor_count
        parts = torch.empty(blocks * share * (head_dim + 2), dtype=torch.float32, device=device)
        return Scratch(parts, torch.zeros(blocks, dtype=torch.int32, device=device))


def serves(cache: torch.Tensor, heads: int) -> bool:
    """Whether the kernel supports a cache [pages, PAGE, kv_heads, head_dim] of this shape and dtype."""
    kv_heads, head_dim = cache.shape[2:]
    share = heads // kv_heads
    supported = cache.dtype in PLAIN and head_dim * cache.itemsize in (64, 128, 256, 512)
    return supported and share <= MAX_SHARE and 8 * share * head_dim * 4 <= SHARED


def _threads(share: int, head_dim: int, itemsize: int, one_wave: bool) -> int:
    """Threads per block: enough to read a page's keys at once, as far as shared memory allows; fewer in many blocks."""
    fitting = MAX_THREADS if share <= 2 and MAX_THREADS // 32 * share * head_dim * 4 <= SHARED else MAX_THREADS // 2
    return min(fitting if one_wave else MAX_THREADS // 4, PAGE * (head_dim * itemsize // 16))


def rope_attend(
    qkv: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor] | None,
    positions: torch.Tensor,
    slots: torch.Tensor,
    lengths: torch.Tensor,
    page_table: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    eps: float,
    heads: int,
    scale: float,
    window: int | None,
    scratch: Scratch,
    dependent: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """qkv [sequences, (heads + 2 kv_heads) * head_dim] to [sequences, heads * head_dim]; zeros where a length is 0.

    positions, slots and lengths are int64 [sequences]; a length includes the new token, a negative slot is not written.
    """
    sequences, kv_heads, head_dim = len(qkv), k_cache.shape[2], k_cache.shape[3]
    blocks, processors = sequences * kv_heads, multiprocessors(qkv.device.index)
    one_wave = blocks <= processors
    splits = max(1, min(page_table.shape[1], (processors if one_wave else 2 * processors) // blocks))
    threads = _threads(heads // kv_heads, head_dim, qkv.itemsize, one_wave)
    kernel = compiled_kernel(
        qkv.device.index, "decode_attention", X_TYPE=PLAIN[qkv.dtype],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, PAGE=PAGE,
        SPLITS=splits, THREADS=threads, ONE_WAVE=one_wave,
        NORM=norms is not None, ROPE=tables is not None, PDL=dependent,
    )  # fmt: skip
    out = qkv.new_empty(sequences, heads * head_dim) if out is None else out
    arguments = (
        qkv, *(tables or (None, None)), positions, slots, lengths, page_table, page_table.stride(0), k_cache, v_cache,
        *(norms or (None, None)), eps, scale * math.log2(math.e), window or 0, scratch.parts, scratch.arrivals, out,
    )  # fmt: skip
    kernel((kv_heads, splits, sequences), threads, arguments, dependent=dependent)
    return out

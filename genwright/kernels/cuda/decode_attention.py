"""Attention of one new token per sequence, with its RoPE and the write to the cache, in one launch."""

import math
from dataclasses import dataclass
from functools import cache

import torch

from genwright.kernels import PAGE
from genwright.kernels.cuda.fused_linear import PLAIN
from genwright.kernels.cuda.nvrtc import Kernel, compile_kernel

MOST_THREADS = 512
SHARED = 40 << 10  # bytes in which the warps of a block merge
MOST_SHARE = 8  # heads to a key-value head: their queries are held in registers


@dataclass(frozen=True)
class Scratch:
    """Where blocks that share a sequence leave their parts; launches that run one after the other use one."""

    parts: torch.Tensor
    arrivals: torch.Tensor  # zero between launches

    @staticmethod
    def allocate(share: int, head_dim: int, device: torch.device) -> "Scratch":
        most = 2 * _processors(device)
        parts = torch.empty(most * share * (head_dim + 2), dtype=torch.float32, device=device)
        return Scratch(parts, torch.zeros(most, dtype=torch.int32, device=device))


def serves(cache: torch.Tensor, heads: int) -> bool:
    """Whether the kernel reads such a cache [pages, PAGE, kv_heads, head_dim]."""
    kv_heads, head_dim = cache.shape[2:]
    whole = head_dim * cache.itemsize in (64, 128, 256, 512)
    share = heads // kv_heads
    return cache.dtype in PLAIN and whole and share <= MOST_SHARE and 8 * share * head_dim * 4 <= SHARED


def _threads(share: int, head_dim: int, itemsize: int, few: bool) -> int:
    """Of one block per processor: a page's keys at once, or as many as there is room for to merge; of more, a part."""
    fitting = MOST_THREADS if share <= 2 and MOST_THREADS // 32 * share * head_dim * 4 <= SHARED else MOST_THREADS // 2
    return min(fitting if few else MOST_THREADS // 4, PAGE * (head_dim * itemsize // 16))


def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


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
) -> torch.Tensor:
    """qkv [sequences, (heads + 2 kv_heads) * head_dim] to [sequences, heads * head_dim]; zeros where a length is 0.

    positions, slots and lengths int64 [sequences]: a length counts the new token, a slot below 0 is not written to.
    """
    sequences, kv_heads, head_dim = len(qkv), k_cache.shape[2], k_cache.shape[3]
    blocks, processors = sequences * kv_heads, _processors(qkv.device)
    few = blocks <= processors
    splits = max(1, min(page_table.shape[1], (processors if few else 2 * processors) // blocks))
    threads = _threads(heads // kv_heads, head_dim, qkv.itemsize, few)
    kernel = _kernel(
        qkv.device.index,
        X_TYPE=PLAIN[qkv.dtype],
        HEADS=heads,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE=PAGE,
        SPLITS=splits,
        THREADS=threads,
        FEW=few,
        NORM=norms is not None,
        ROPE=tables is not None,
        PDL=dependent,
    )
    out = qkv.new_empty(sequences, heads * head_dim)
    arguments = (
        qkv, *(tables or (None, None)), positions, slots, lengths, page_table, page_table.stride(0), k_cache, v_cache,
        *(norms or (None, None)), eps, scale * math.log2(math.e), window or 0, scratch.parts, scratch.arrivals, out,
    )  # fmt: skip
    kernel((kv_heads, splits, sequences), threads, arguments, dependent=dependent)
    return out


@cache
def _kernel(device: int, **defines: int) -> Kernel:
    return compile_kernel("decode_attention", defines)

"""Decode attention with one new token per sequence: RoPE, the write to the cache and attention in one launch."""

import math
from dataclasses import dataclass

import torch

from genwright.kernels import PAGE
from genwright.kernels.cuda.fused_linear import PLAIN
from genwright.kernels.cuda.nvrtc import compiled_kernel, multiprocessors, shared_memory

MAX_SHARE = 8  # query heads per key-value head: the columns of an mma
TILE_KEYS = 16  # per warp and copy: the rows of an mma
RING = 3  # copies that a warp has in flight
STATIC = 8 << 10  # bytes of shared memory for the rest, at most
MAX_BLOCKS = 4  # per multiprocessor
MAX_SPLITS = 128  # blocks of one sequence; their sums and maxima have room in shared memory


@dataclass(frozen=True)
class Scratch:
    """Partial results of the blocks that split a sequence; consecutive launches on a stream reuse it."""

    parts: torch.Tensor
    stats: torch.Tensor  # maximum and sum of each
    arrivals: torch.Tensor  # zero between launches

    @staticmethod
    def allocate(share: int, head_dim: int, device: torch.device) -> "Scratch":
        # A split sequence has more pages than a block reads, so it has fewer than twice as many blocks as that makes.
        blocks = 2 * MAX_BLOCKS * torch.cuda.get_device_properties(device).multi_processor_count
        parts = torch.empty(blocks * share, head_dim, dtype=torch.float32, device=device)
        stats = torch.empty(blocks * share, 2, dtype=torch.float32, device=device)
        return Scratch(parts, stats, torch.zeros(blocks, dtype=torch.int32, device=device))


@dataclass(frozen=True)
class Launch:
    """The shape of a launch."""

    warps: int  # per block
    blocks: int  # per multiprocessor
    short_blocks: int  # the same, if they have few pages each
    whole_pages: int  # the longest sequence that is never split over blocks

    @staticmethod
    def choose(blocks: int, share: int, row_bytes: int, processors: int, shared: int) -> "Launch":
        """For so many sequences times key-value heads.

        Many blocks hide each other's start and end; few are fastest if each reads as much as it can at once.
        """
        warps = (shared - STATIC) // (RING * TILE_KEYS * row_bytes)
        whole_pages = 4 if share == 1 else 1  # merging blocks takes longer than the pages of few query heads
        if blocks <= processors:
            return Launch(min(8, warps), min(2, max(1, warps // 8)), 1, whole_pages)
        resident = max(1, min(MAX_BLOCKS, warps // 4))
        return Launch(min(4, warps), resident, resident, whole_pages)


def serves(cache: torch.Tensor, heads: int) -> bool:
    """Whether the kernel supports a cache [pages, PAGE, kv_heads, head_dim] of this shape and dtype."""
    kv_heads, head_dim = cache.shape[2:]
    supported = cache.dtype in PLAIN and head_dim * cache.itemsize in (64, 128, 256, 512) and head_dim % 16 == 0
    return supported and heads // kv_heads <= MAX_SHARE


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
    row_bytes, processors = head_dim * qkv.itemsize, multiprocessors(qkv.device.index)
    launch = Launch.choose(
        sequences * kv_heads, heads // kv_heads, row_bytes, processors, shared_memory(qkv.device.index)
    )
    kernel = compiled_kernel(
        qkv.device.index, "decode_attention", X_TYPE=PLAIN[qkv.dtype],
        HEADS=heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, PAGE=PAGE,
        WHOLE_PAGES=launch.whole_pages, RING=RING, THREADS=32 * launch.warps, BLOCKS=launch.blocks,
        NORM=norms is not None, ROPE=tables is not None, PDL=dependent,
    )  # fmt: skip
    out = qkv.new_empty(sequences, heads * head_dim) if out is None else out
    # Blocks per key-value head, if they all had equally many pages.
    target, short_target = (
        min(max(1, blocks * processors // kv_heads), MAX_SPLITS) for blocks in (launch.blocks, launch.short_blocks)
    )
    arguments = (
        qkv, *(tables or (None, None)), positions, slots, lengths, page_table, page_table.stride(0), k_cache, v_cache,
        *(norms or (None, None)), eps, scale * math.log2(math.e), window or 0, sequences, target, short_target,
        scratch.parts, scratch.stats, scratch.arrivals, out,
    )  # fmt: skip
    # A sequence's last block may have fewer pages than the others, so there may be one more block for each but one.
    most = min(target + sequences - 1, sequences * page_table.shape[1])
    shared = launch.warps * RING * TILE_KEYS * row_bytes
    kernel((kv_heads, most, 1), 32 * launch.warps, arguments, shared, dependent)
    return out

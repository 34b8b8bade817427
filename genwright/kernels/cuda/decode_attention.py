"""Decode attention with one new token per sequence: RoPE, the write to the cache and attention in one launch."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from genwright.kernels import PAGE
from genwright.kernels.cuda.fused_linear import PLAIN
from genwright.kernels.cuda.nvrtc import compiled_kernel, multiprocessors, shared_memory

MAX_SHARE = 8  # query heads per key-value head: the columns of an mma
TILE_KEYS = 16  # per warp and copy: the rows of an mma
RING = 3  # copies that a warp has in flight
STATIC = 8 << 10  # bytes of shared memory for the rest, at most
MAX_BLOCKS = 4  # per multiprocessor
_MERGED = 40 << 10  # bytes of shared memory in which the warps of a block merge their results
MAX_SPLITS = 128  # blocks of one sequence; their sums and maxima have room in shared memory


Inputs = tuple[Any, ...]  # arguments that both kernels begin with
Defines = dict[str, int]  # macros that both have


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
    """The shape of a launch of the grouped kernel."""

    warps: int  # per block
    blocks: int  # per multiprocessor
    short_blocks: int  # the same, if they have few pages each

    @staticmethod
    def choose(blocks: int, row_bytes: int, processors: int, shared: int) -> "Launch":
        """For so many sequences times key-value heads.

        Many blocks hide each other's start and end; few are fastest if each reads as much as it can at once.
        """
        warps = (shared - STATIC) // (RING * TILE_KEYS * row_bytes)
        if blocks <= processors:
            return Launch(min(8, warps), min(2, max(1, warps // 8)), 1)
        resident = max(1, min(MAX_BLOCKS, warps // 4))
        return Launch(min(4, warps), resident, resident)


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
    out = qkv.new_empty(len(qkv), heads * k_cache.shape[3]) if out is None else out
    inputs = (
        qkv, *(tables or (None, None)), positions, slots, lengths, page_table, page_table.stride(0), k_cache, v_cache,
        *(norms or (None, None)), eps, scale * math.log2(math.e), window or 0,
    )  # fmt: skip
    defines = {
        "X_TYPE": PLAIN[qkv.dtype], "HEADS": heads, "KV_HEADS": k_cache.shape[2], "HEAD_DIM": k_cache.shape[3],
        "PAGE": PAGE, "NORM": norms is not None, "ROPE": tables is not None, "PDL": dependent,
    }  # fmt: skip
    launch = _launch if heads == k_cache.shape[2] else _launch_grouped
    launch(qkv, k_cache, page_table.shape[1], inputs, defines, scratch, out)
    return out


def _launch(
    qkv: torch.Tensor, k_cache: torch.Tensor, pages: int, inputs: Inputs, defines: Defines, scratch: Scratch, out: Any
) -> None:
    """The kernel for models with as many key-value heads as query heads; each block computes in float32."""
    sequences, kv_heads, processors = len(qkv), k_cache.shape[2], multiprocessors(qkv.device.index)
    blocks = sequences * kv_heads
    one_wave = blocks <= processors
    splits = max(1, min(pages, (processors if one_wave else 2 * processors) // blocks))
    # Enough threads to read a page's keys at once; fewer in many blocks.
    chunks = k_cache.shape[3] * qkv.itemsize // 16
    fitting = 512 if 16 * k_cache.shape[3] * 4 <= _MERGED else 256
    threads = min(fitting if one_wave else 128, PAGE * chunks)
    kernel = compiled_kernel(
        qkv.device.index, "decode_attention", SPLITS=splits, THREADS=threads, ONE_WAVE=one_wave, **defines
    )
    kernel(
        (kv_heads, splits, sequences), threads, (*inputs, scratch.parts, scratch.arrivals, out),
        dependent=bool(defines["PDL"]),
    )  # fmt: skip


def _launch_grouped(
    qkv: torch.Tensor, k_cache: torch.Tensor, pages: int, inputs: Inputs, defines: Defines, scratch: Scratch, out: Any
) -> None:
    """The kernel for models whose query heads share key-value heads; blocks divide all pages evenly."""
    sequences, kv_heads, processors = len(qkv), k_cache.shape[2], multiprocessors(qkv.device.index)
    row_bytes = k_cache.shape[3] * qkv.itemsize
    launch = Launch.choose(sequences * kv_heads, row_bytes, processors, shared_memory(qkv.device.index))
    kernel = compiled_kernel(
        qkv.device.index, "grouped_decode_attention", WHOLE_PAGES=1, RING=RING, THREADS=32 * launch.warps,
        BLOCKS=launch.blocks, **defines,
    )  # fmt: skip
    # Blocks per key-value head, if they all had equally many pages.
    target, short_target = (
        min(max(1, blocks * processors // kv_heads), MAX_SPLITS) for blocks in (launch.blocks, launch.short_blocks)
    )
    arguments = *inputs, sequences, target, short_target, scratch.parts, scratch.stats, scratch.arrivals, out
    # A sequence's last block may have fewer pages than the others, so there may be one more block for each but one.
    most = min(target + sequences - 1, sequences * pages)
    shared = launch.warps * RING * TILE_KEYS * row_bytes
    kernel((kv_heads, most, 1), 32 * launch.warps, arguments, shared, bool(defines["PDL"]))

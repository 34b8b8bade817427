"""Linear layers of up to 32 tokens (a skinny GEMM), fused with the bias, gate and residual."""

from dataclasses import dataclass

import torch

from genwright.kernels.cuda.fused_linear import CHUNK, INT4, INT8, PLAIN, Operand
from genwright.kernels.cuda.nvrtc import compiled_kernel, multiprocessors

MAX_SKINNY_TOKENS = 32
MAX_ROWS = 256  # of all blocks of a multiprocessor
MAX_BLOCKS_PER_TILE = 12  # that share a tile of rows
FINISHERS = 128  # threads that write results while the others multiply
WARPS, M_TILE, N_TILE = 4, 64, 8  # of a product of the tensor cores: warps, rows, and tokens, or a multiple of them
WORD = 4  # bytes; scales are copied in whole words
SHARED_BYTES = 227 << 10  # of a Hopper GPU that a block can have
NOTHING = -1  # bits of a sum that has not been written


@dataclass(frozen=True)
class SkinnyTiling:
    """Launch parameters of the skinny GEMM."""

    threads: int  # per block, without the finishers
    m_tiles: int  # per four warps
    k_tile: int  # columns per stage
    stages: int  # three or more: all but one are in flight, or all but two of unpacked weights
    blocks: int = 1  # per multiprocessor

    @property
    def rows(self) -> int:
        """Per block."""
        return self.threads // 32 // WARPS * self.m_tiles * M_TILE


def new_scratch(tokens: int, device: torch.device) -> torch.Tensor:
    """Room for sums of tiles that blocks share, for any product of so many tokens rounded up to whole tiles.

    Consecutive launches on a stream reuse it.
    """
    rows = torch.cuda.get_device_properties(device).multi_processor_count * MAX_ROWS
    return torch.full((rows, N_TILE * n_tiles(tokens)), NOTHING, dtype=torch.int32, device=device)


def n_tiles(tokens: int) -> int:
    """Tiles of tokens that a kernel is compiled for: 1, 2 or 4."""
    assert 1 <= tokens <= MAX_SKINNY_TOKENS
    return int(1 << (-(-tokens // N_TILE) - 1).bit_length())


def serves(x: torch.Tensor, weight: Operand, tiling: SkinnyTiling) -> bool:
    """Whether the kernel supports the product: a matrix in int8, int4 or x's type, and few tokens, on a Hopper GPU.

    A stage must hold whole groups and fit in shared memory; its scales, and those of a row, must be whole words.
    """
    few = x.dtype in (torch.float16, torch.bfloat16) and len(x) <= MAX_SKINNY_TOKENS
    if not few or weight.matrix.dim() != 2 or weight.format not in (INT8, INT4, PLAIN[x.dtype]):
        return False
    readable = tiling.k_tile % max(4 * weight.width, 64) == 0
    if weight.scales is not None and weight.group:
        counts = (weight.scales.shape[1], tiling.k_tile // weight.group)
        words = all(count * weight.scales.itemsize % WORD == 0 for count in counts)
        aligned = all(each is None or each.data_ptr() % CHUNK == 0 for each in (weight.scales, weight.minimums))
        readable = readable and tiling.k_tile % weight.group == 0 and words and aligned
    fits = readable and shared_bytes(weight, len(x), tiling) <= SHARED_BYTES
    return fits and torch.cuda.get_device_capability(x.device)[0] == 9


def skinny_linear(
    x: torch.Tensor,
    weight: Operand,
    tiling: SkinnyTiling,
    scratch: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: bool = False,
    dependent: bool = True,
) -> torch.Tensor:
    """residual + W x + bias, or with `gate` silu(y1) * y2 of its halves: x [tokens, columns], contiguous."""
    assert x.shape[1] == weight.columns and tiling.rows * tiling.blocks <= MAX_ROWS
    outputs = weight.matrix.shape[0] // (2 if gate else 1)
    tiles, steps = -(-weight.matrix.shape[0] // tiling.rows), -(-weight.columns // tiling.k_tile)
    grid = min(tiles * min(steps, MAX_BLOCKS_PER_TILE), tiling.blocks * multiprocessors(x.device.index))
    scale_type = PLAIN[x.dtype if weight.scales is None else weight.scales.dtype]
    shape = {
        "FORMAT": weight.format, "X_TYPE": PLAIN[x.dtype], "SCALE_TYPE": scale_type,
        "OUTPUTS": outputs, "COLUMNS": weight.columns, "GROUP": weight.group, "N_TILES": n_tiles(len(x)),
        "M_TILES": tiling.m_tiles, "K_TILE": tiling.k_tile, "STAGES": tiling.stages, "THREADS": tiling.threads,
        "FINISHERS": FINISHERS, "BLOCKS": tiling.blocks, "GRID": grid, "GATE": gate,
        "MINIMUMS": weight.minimums is not None, "PDL": dependent,
    }  # fmt: skip
    y = x.new_empty(len(x), outputs)
    arguments = (x, weight.matrix, weight.scales, weight.minimums, bias, residual, y, scratch, len(x))
    kernel = compiled_kernel(x.device.index, "skinny", **shape)
    kernel(grid, tiling.threads + FINISHERS, arguments, shared_bytes(weight, len(x), tiling), dependent)
    return y


def shared_bytes(weight: Operand, tokens: int, tiling: SkinnyTiling) -> int:
    """Shared memory of a block: stages of weights with scales and minimums, a tile's sums, and x of some stages."""
    columns = N_TILE * n_tiles(tokens)
    row = tiling.k_tile // weight.width * CHUNK
    if weight.scales is not None and weight.group:
        row += tiling.k_tile // weight.group * weight.scales.itemsize * (1 if weight.minimums is None else 2)
    packed, x = weight.format in (INT8, INT4), columns * tiling.k_tile * 2
    stage = -(-(tiling.rows * row + (0 if packed else x)) // 1024) * 1024
    return tiling.stages * stage + columns * (tiling.rows + 4) * 4 + (3 * x if packed else 0)

"""Linear layers of up to 64 tokens with a packed weight (a skinny GEMM), fused with the bias, gate and residual."""

from dataclasses import dataclass

import torch

from genwright.kernels.cuda.fused_linear import CHUNK, PLAIN, Operand
from genwright.kernels.cuda.nvrtc import compiled_kernel, multiprocessors

MAX_SKINNY_TOKENS = 64
MAX_ROWS = 256  # of all blocks of a multiprocessor
M_TILE, N_TILE = 16, 8  # rows and tokens of an mma
WORD = 4  # bytes; scales are copied in aligned words


@dataclass(frozen=True)
class SkinnyTiling:
    """Launch parameters of the skinny GEMM."""

    threads: int  # per block
    m_tiles: int  # per warp
    k_tile: int  # columns per stage
    stages: int  # two or more: all but one are in flight
    blocks: int = 1  # per multiprocessor


@dataclass(frozen=True)
class Scratch:
    """Sums of tiles that several blocks share; consecutive launches on a stream reuse it."""

    parts: torch.Tensor
    arrivals: torch.Tensor  # zero between launches

    @staticmethod
    def allocate(tokens: int, device: torch.device) -> "Scratch":
        """For any product of so many tokens, rounded up to whole tiles."""
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        rows = 2 * processors * MAX_ROWS  # a block shares its first and its last tile
        parts = torch.empty(rows, N_TILE * n_tiles(tokens), dtype=torch.float32, device=device)
        return Scratch(parts, torch.zeros(rows // M_TILE, dtype=torch.int32, device=device))


def n_tiles(tokens: int) -> int:
    """Tiles of tokens that a kernel is compiled for: 1, 2, 4 or 8."""
    assert 1 <= tokens <= MAX_SKINNY_TOKENS
    return int(1 << (-(-tokens // N_TILE) - 1).bit_length())


def serves(x: torch.Tensor, weight: Operand) -> bool:
    """Whether the kernel supports the product: a packed matrix, and x of few tokens in 16 bits, on a Hopper GPU."""
    if weight.scales is None or weight.matrix.dim() != 2 or x.dtype not in (torch.float16, torch.bfloat16):
        return False
    aligned = all(each is None or each.data_ptr() % WORD == 0 for each in (weight.scales, weight.minimums))
    return aligned and len(x) <= MAX_SKINNY_TOKENS and torch.cuda.get_device_capability(x.device)[0] == 9


def skinny_linear(
    x: torch.Tensor,
    weight: Operand,
    tiling: SkinnyTiling,
    scratch: Scratch,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: bool = False,
    dependent: bool = True,
) -> torch.Tensor:
    """residual + W x + bias, or with `gate` silu(y1) * y2 of its halves: x [tokens, columns], contiguous."""
    assert x.shape[1] == weight.columns and weight.scales is not None
    outputs = weight.matrix.shape[0] // (2 if gate else 1)
    shape = {
        "FORMAT": weight.format, "X_TYPE": PLAIN[x.dtype], "SCALE_TYPE": PLAIN[weight.scales.dtype],
        "OUTPUTS": outputs, "COLUMNS": weight.columns, "GROUP": weight.group, "SCALE_ROWS": weight.scale_rows,
        "N_TILES": n_tiles(len(x)), "M_TILES": tiling.m_tiles, "K_TILE": tiling.k_tile, "STAGES": tiling.stages,
        "THREADS": tiling.threads, "BLOCKS": tiling.blocks, "GATE": gate, "MINIMUMS": weight.minimums is not None,
        "PDL": dependent,
    }  # fmt: skip
    rows = tiling.threads // 32 * tiling.m_tiles * M_TILE  # per block
    assert rows * tiling.blocks <= MAX_ROWS
    units = -(-weight.matrix.shape[0] // rows) * -(-weight.columns // tiling.k_tile)
    grid = min(units, tiling.blocks * multiprocessors(x.device.index))
    y = x.new_empty(len(x), outputs)
    arguments = (
        x, weight.matrix, weight.scales, weight.minimums, bias, residual, y, scratch.parts, scratch.arrivals, len(x)
    )  # fmt: skip
    kernel = compiled_kernel(x.device.index, "skinny", **shape)
    kernel(grid, tiling.threads, arguments, stage_bytes(weight, len(x), tiling) * tiling.stages, dependent)
    return y


def stage_bytes(weight: Operand, tokens: int, tiling: SkinnyTiling) -> int:
    """Shared memory of a stage: the weights, a word for each chunk's scale and minimum, and x."""
    chunks = tiling.threads * 2 * tiling.m_tiles * (tiling.k_tile // (4 * weight.width))
    words = 0 if not weight.group else 1 if weight.minimums is None else 2
    return chunks * (CHUNK + WORD * words) + n_tiles(tokens) * N_TILE * tiling.k_tile * 2

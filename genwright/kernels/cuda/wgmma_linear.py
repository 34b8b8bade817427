"""Linear layers of 17 to 64 tokens with packed weights on Hopper GPUs, fused with the bias, gate and residual."""

import torch

from genwright.kernels.cuda.fused_linear import CHUNK, INT4, INT8, PLAIN, Operand
from genwright.kernels.cuda.nvrtc import TensorMap, compiled_kernel, multiprocessors, shared_memory

MAX_WGMMA_TOKENS = 64
N_TILE = 8  # tokens
TEAMS, TEAM_THREADS = 2, 128  # that have weights multiplied
TEAM_ROWS = (64, 128)  # that a kernel can be compiled for
X_WARPS = 3  # that bring x; one more brings weights
LINE = 128  # bytes of shared memory: of a row in a stage
MAX_STAGES, X_STAGES = 8, 6
MAX_BLOCKS_PER_TILE = 12  # that share a tile of rows
SWIZZLE = 1024  # bytes of shared memory after which TMA's order repeats
FACTOR_BYTES, BARRIERS = 8, 512  # bytes: of a group, and of all barriers
FLAGS = 1024  # words of the scratch before the sums


def new_scratch(device: torch.device) -> torch.Tensor:
    """Room for sums of tiles that blocks share; consecutive launches on a stream reuse it."""
    sums = multiprocessors(device.index) * TEAMS * TEAM_ROWS[-1] * MAX_WGMMA_TOKENS
    return torch.zeros(FLAGS + sums, dtype=torch.int32, device=device)


def serves(x: torch.Tensor, weight: Operand) -> bool:
    """Whether the kernel supports the product: a matrix in int8 or int4, and up to 64 tokens, on a Hopper GPU.

    A stage must be whole groups, or a group whole stages.
    """
    few = x.dtype in (torch.float16, torch.bfloat16) and len(x) <= MAX_WGMMA_TOKENS
    if not few or weight.matrix.dim() != 2 or weight.format not in (INT8, INT4):
        return False
    group, stage = weight.group or 1, _stage_columns(weight)
    whole = stage % group == 0 or group % stage == 0
    read = (weight.matrix, weight.scales, weight.minimums)
    aligned = all(each is None or each.data_ptr() % CHUNK == 0 for each in read)
    return whole and aligned and torch.cuda.get_device_capability(x.device)[0] == 9


def wgmma_linear(
    x: torch.Tensor,
    weight: Operand,
    scratch: torch.Tensor,
    *,
    team_rows: int,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: bool = False,
    dependent: bool = True,
) -> torch.Tensor:
    """residual + W x + bias, or with `gate` silu(y1) * y2 of its halves: x [tokens, columns], contiguous.

    The residual is contiguous too, and begins at a whole chunk.
    """
    assert residual is None or (residual.is_contiguous() and residual.data_ptr() % CHUNK == 0)
    assert x.shape[1] == weight.columns and not (gate and residual is not None) and weight.scales is not None
    halves = 2 if gate else 1
    outputs, rows = weight.matrix.shape[0] // halves, TEAMS * team_rows
    tiles, steps = -(-weight.matrix.shape[0] // rows), -(-weight.columns // _stage_columns(weight))
    grid = min(tiles * min(steps, MAX_BLOCKS_PER_TILE), multiprocessors(x.device.index))
    fixed, stage_bytes = _fixed_bytes(weight, len(x), team_rows), rows * LINE
    stages = min(MAX_STAGES, (shared_memory(x.device.index) - fixed) // stage_bytes)
    shared = fixed + stages * stage_bytes
    shape = {
        "FORMAT": weight.format, "X_TYPE": PLAIN[x.dtype], "SCALE_TYPE": PLAIN[weight.scales.dtype],
        "OUTPUTS": outputs, "COLUMNS": weight.columns, "GROUP": weight.group, "N_TILES": n_tiles(len(x)),
        "TEAM_ROWS": team_rows, "THREADS": TEAMS * TEAM_THREADS, "X_WARPS": X_WARPS, "STAGES": stages,
        "X_STAGES": X_STAGES, "SHARED_BYTES": shared, "GRID": grid, "FLAGS": FLAGS, "GATE": gate,
        "BIAS": bias is not None, "RESIDUAL": residual is not None, "MINIMUMS": weight.minimums is not None,
        "PDL": dependent,
    }  # fmt: skip
    y = x.new_empty(len(x), outputs)
    row_bytes = weight.columns // weight.width * CHUNK
    sizes, strides = (row_bytes, outputs, halves), (row_bytes, outputs * row_bytes)
    weight_map = TensorMap(weight.matrix.data_ptr(), sizes, strides, (LINE, team_rows // halves, halves))
    arguments = (x, [weight_map], weight.scales, weight.minimums, bias, residual, y, scratch, len(x))
    threads = TEAMS * TEAM_THREADS + 32 * (1 + X_WARPS)
    kernel = compiled_kernel(x.device.index, "packed_wgmma", **shape)
    kernel(grid, threads, arguments, shared, dependent)
    return y


def n_tiles(tokens: int) -> int:
    """Tiles of tokens that a kernel is compiled for: 4 or 8."""
    assert 1 <= tokens <= MAX_WGMMA_TOKENS
    return 4 if tokens <= 4 * N_TILE else 8


def _stage_columns(weight: Operand) -> int:
    return LINE // CHUNK * weight.width


def _fixed_bytes(weight: Operand, tokens: int, team_rows: int) -> int:
    """Shared memory besides the stages of weights: x, sums, factors of groups, and barriers.

    Rows of sums and of factors are a little longer than they need be, so that they lie in different banks.
    """
    rows, tokens = TEAMS * team_rows, N_TILE * n_tiles(tokens)
    sums = TEAMS * tokens * (team_rows + 4) * 4
    groups = max(_stage_columns(weight) // weight.group, 1) + 1 if weight.group else 0
    fixed = X_STAGES * tokens * LINE + sums + rows * groups * FACTOR_BYTES + BARRIERS
    return -(-fixed // SWIZZLE) * SWIZZLE

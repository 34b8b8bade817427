"""Linear layers of 2 to 16 tokens with packed weights on Hopper GPUs, fused with the norm, bias, gate and residual."""

from dataclasses import dataclass

import torch

from genwright.kernels.cuda.fused_linear import CHUNK, INT4, INT8, PLAIN, Operand
from genwright.kernels.cuda.nvrtc import compiled_kernel, multiprocessors, shared_memory

MAX_PACKED_TOKENS = 16
N_TILE = 8  # tokens of a product of the tensor cores
ROWS = 16  # of a tile
PART = 256  # columns of a warp
STAGE_CHUNKS = 8  # of a stage's row
MAX_STAGES = 8
MIN_WARPS, MAX_WARPS = 8, 16  # per block
MAX_SPLITS = 8
FEW_TURNS = 3  # with so few, x delays a block more than late weights do
WORD = 4  # bytes; scales are copied in whole words
NOTHING = -1  # bits of a sum that has not been left


@dataclass(frozen=True)
class PackedTiling:
    """Launch parameters: a row is divided among the warps of `splits` blocks."""

    splits: int
    warps: int  # per block
    stages: int  # per warp; all but one are in flight
    turns: int  # tiles of rows of a block, at most

    @property
    def early_stages(self) -> int:
        """Stages that are copied before x is known; more of them would delay x."""
        return min(1 if self.turns <= FEW_TURNS else 2, self.stages - 1)


def packed_tiling(weight: Operand, x: torch.Tensor) -> PackedTiling | None:
    """None if the kernel cannot compute the product, or if others are faster because a row is short."""
    few = 1 < len(x) <= MAX_PACKED_TOKENS and x.dtype in (torch.float16, torch.bfloat16)
    packed = weight.format in (INT8, INT4) and weight.matrix.dim() == 2 and _readable_scales(weight)
    if not few or not packed or torch.cuda.get_device_capability(x.device)[0] != 9:
        return None
    parts = -(-weight.columns // PART)
    splits = -(-parts // MAX_WARPS)
    warps = -(-parts // splits)
    stages = min(MAX_STAGES, (shared_memory(x.device.index) - _fixed_bytes(warps)) // (warps * _stage_bytes(weight)))
    if warps < MIN_WARPS or splits > MAX_SPLITS or stages < 2:
        return None
    turns = -(-weight.matrix.shape[0] // (ROWS * (multiprocessors(x.device.index) // splits)))
    return PackedTiling(splits, warps, stages, turns)


def fuses_norm(tiling: PackedTiling, x: torch.Tensor) -> bool:
    """Whether the norm can be fused: a block has whole rows, and x times the norm's weights cannot overflow."""
    return tiling.splits == 1 and x.dtype == torch.bfloat16


def new_scratch(tiling: PackedTiling, device: torch.device) -> torch.Tensor:
    """Room for sums that blocks leave to others; consecutive launches on a stream reuse it."""
    sums = multiprocessors(device.index) * tiling.turns * MAX_PACKED_TOKENS * ROWS
    return torch.full((sums if tiling.splits > 1 else 0,), NOTHING, dtype=torch.int32, device=device)


def packed_linear(
    x: torch.Tensor,
    weight: Operand,
    tiling: PackedTiling,
    scratch: torch.Tensor,
    *,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: bool = False,
    dependent: bool = True,
) -> torch.Tensor:
    """residual + W norm(x) + bias, or with `gate` silu(y1) * y2 of its halves: x [tokens, columns], contiguous."""
    assert (
        x.shape[1] == weight.columns and (norm is None or fuses_norm(tiling, x)) and not (gate and residual is not None)
    )
    outputs = weight.matrix.shape[0] // (2 if gate else 1)
    scale_type = PLAIN[x.dtype if weight.scales is None else weight.scales.dtype]
    shape = {
        "FORMAT": weight.format, "X_TYPE": PLAIN[x.dtype], "SCALE_TYPE": scale_type, "OUTPUTS": outputs,
        "COLUMNS": weight.columns, "GROUP": weight.group, "N_TILES": -(-len(x) // N_TILE), "THREADS": 32 * tiling.warps,
        "SPLITS": tiling.splits, "STAGES": tiling.stages, "EARLY": tiling.early_stages, "NORM": norm is not None,
        "GATE": gate, "BIAS": bias is not None, "RESIDUAL": residual is not None,
        "MINIMUMS": weight.minimums is not None, "PDL": dependent,
    }  # fmt: skip
    tiles = -(-outputs // (ROWS // 2 if gate else ROWS))
    grid = min(tiles, multiprocessors(x.device.index) // tiling.splits) * tiling.splits
    y = x.new_empty(len(x), outputs)
    arguments = (x, norm, eps, weight.matrix, weight.scales, weight.minimums, bias, residual, y, scratch, len(x))
    shared = _fixed_bytes(tiling.warps) + tiling.warps * tiling.stages * _stage_bytes(weight)
    kernel = compiled_kernel(x.device.index, "packed_skinny", **shape)
    kernel(grid, 32 * tiling.warps, arguments, shared, dependent)
    return y


def _readable_scales(weight: Operand) -> bool:
    """Whether a stage's row and a whole one have whole words of scales, which begin at whole chunks."""
    if weight.scales is None or not weight.group:
        return True
    columns = STAGE_CHUNKS * weight.width
    counts = columns // weight.group, weight.scales.shape[1]
    words = columns % weight.group == 0 and all(count * weight.scales.itemsize % WORD == 0 for count in counts)
    return words and all(each is None or each.data_ptr() % CHUNK == 0 for each in (weight.scales, weight.minimums))


def _stage_bytes(weight: Operand) -> int:
    row = STAGE_CHUNKS * CHUNK
    if weight.scales is not None and weight.group:
        kinds = 1 if weight.minimums is None else 2
        row += STAGE_CHUNKS * weight.width // weight.group * weight.scales.itemsize * kinds
    return -(-ROWS * row // 128) * 128


def _fixed_bytes(warps: int) -> int:
    """Shared memory besides the stages: sums of two tiles and of squares, and barriers."""
    return warps * (2 * ROWS + 1) * MAX_PACKED_TOKENS * 4 + 128

"""Linear layers of 2 to 16 tokens with packed weights on Hopper GPUs, fused with the norm, bias, gate and residual."""

from dataclasses import dataclass
from math import gcd

import torch

from genwright.kernels.cuda.fused_linear import CHUNK, INT4, INT8, PLAIN, Operand
from genwright.kernels.cuda.nvrtc import TensorMap, compiled_kernel, multiprocessors, shared_memory

MAX_PACKED_TOKENS = 16
N_TILE = 8  # tokens of a product of the tensor cores
ROWS = 16  # of a tile
PART = 256  # columns of a warp
LINE = 128  # bytes of shared memory: a slice of a row
TMA_ALIGNMENT = 16  # bytes, of tensors and of their rows
MAX_STAGES = 8
MIN_WARPS, MAX_WARPS = 8, 16  # per block
MAX_SPLITS = 8
X_ROOM = PART * MAX_PACKED_TOKENS * 2  # bytes of a warp's x
SUMS_ROOM = 2 * ROWS * MAX_PACKED_TOKENS * 4  # bytes of a warp's sums of two tiles
NOTHING = -1  # bits of a sum that has not been left


@dataclass(frozen=True)
class PackedTiling:
    """Launch parameters: a row is divided among the warps of `splits` blocks."""

    splits: int
    warps: int  # per block
    stages: int  # tiles in shared memory, or half tiles of int8
    turns: int  # tiles of rows of a block, at most


def packed_tiling(weight: Operand, x: torch.Tensor) -> PackedTiling | None:
    """None if the kernel cannot compute the product, or if others are faster because a row is short."""
    few = 1 < len(x) <= MAX_PACKED_TOKENS and x.dtype in (torch.float16, torch.bfloat16)
    packed = weight.format in (INT8, INT4) and weight.matrix.dim() == 2 and _copyable(weight)
    if not few or not packed or torch.cuda.get_device_capability(x.device)[0] != 9:
        return None
    parts = -(-weight.columns // PART)
    splits = -(-parts // MAX_WARPS)
    warps = -(-parts // splits)
    stage_bytes = _stage_bytes(weight, warps)
    stages = min(MAX_STAGES, (shared_memory(x.device.index) - _fixed_bytes(warps)) // stage_bytes)
    for_two_turns = stages >= 2 * PART // _slice_columns(weight)
    for_x = (stages - 1) * stage_bytes + warps * SUMS_ROOM >= warps * X_ROOM
    if warps < MIN_WARPS or splits > MAX_SPLITS or not for_two_turns or not for_x:
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
    tiles = -(-outputs // (ROWS // 2 if gate else ROWS))
    stride = min(tiles, multiprocessors(x.device.index) // tiling.splits)
    stage_bytes = _stage_bytes(weight, tiling.warps)
    scale_type = PLAIN[x.dtype if weight.scales is None else weight.scales.dtype]
    shape = {
        "FORMAT": weight.format, "X_TYPE": PLAIN[x.dtype], "SCALE_TYPE": scale_type, "OUTPUTS": outputs,
        "COLUMNS": weight.columns, "GROUP": weight.group, "N_TILES": -(-len(x) // N_TILE), "THREADS": 32 * tiling.warps,
        "SPLITS": tiling.splits, "STRIDE": stride, "STAGES": tiling.stages, "STAGE_BYTES": stage_bytes,
        "NORM": norm is not None, "GATE": gate, "BIAS": bias is not None, "RESIDUAL": residual is not None,
        "MINIMUMS": weight.minimums is not None, "PDL": dependent,
    }  # fmt: skip
    y = x.new_empty(len(x), outputs)
    maps = _maps(x, weight, tiling.warps, 2 if gate else 1)
    arguments = (norm, eps, maps, None if weight.group else weight.scales, bias, residual, y, scratch, len(x))
    shared = _fixed_bytes(tiling.warps) + tiling.stages * stage_bytes
    kernel = compiled_kernel(x.device.index, "packed_skinny", **shape)
    kernel(stride * tiling.splits, 32 * tiling.warps, arguments, shared, dependent)
    return y


def _maps(x: torch.Tensor, weight: Operand, warps: int, halves: int) -> list[TensorMap | None]:
    """What is copied at a time: x of a slice of columns; of a tile, a slice of each warp, its scales and its minimums.

    A tile has rows of both `halves` of the matrix if there is a gate.
    """
    tokens, rows = len(x), weight.matrix.shape[0] // halves
    pitch, row_bytes = x.shape[1] * x.itemsize, weight.columns // weight.width * CHUNK
    x_box = (LINE, -(-tokens // N_TILE) * N_TILE, _slice_columns(weight) * x.itemsize // LINE)
    sizes, strides = (LINE, rows, halves, row_bytes // LINE), (row_bytes, rows * row_bytes, LINE)
    scales = weight.scales if weight.group else None
    return [
        TensorMap(x.data_ptr(), (LINE, tokens, pitch // LINE), (pitch, LINE), x_box),
        TensorMap(weight.matrix.data_ptr(), sizes, strides, (LINE, ROWS // halves, halves, warps)),
        None if scales is None else _scale_map(scales, rows, halves),
        None if weight.minimums is None else _scale_map(weight.minimums, rows, halves),
    ]


def _scale_map(scales: torch.Tensor, rows: int, halves: int) -> TensorMap:
    merged = _merged_rows(scales)
    pitch, rows = scales.shape[1] * scales.itemsize * merged, rows // merged
    return TensorMap(
        scales.data_ptr(), (pitch, rows, halves), (pitch, rows * pitch), (LINE, ROWS // halves // merged, halves)
    )


def _merged_rows(scales: torch.Tensor) -> int:
    """So many rows of scales are one row to TMA."""
    return TMA_ALIGNMENT // gcd(TMA_ALIGNMENT, scales.shape[1] * scales.itemsize)


def _slice_columns(weight: Operand) -> int:
    """Columns of a warp in a stage."""
    return LINE // CHUNK * weight.width


def _copyable(weight: Operand) -> bool:
    """Whether TMA can copy the weight: rows of whole slices, these of whole groups, and merged rows complete."""
    whole = weight.columns % _slice_columns(weight) == 0 and weight.matrix.data_ptr() % TMA_ALIGNMENT == 0
    if weight.scales is None or not weight.group:
        return whole
    whole &= (
        _slice_columns(weight) % weight.group == 0 and weight.matrix.shape[0] % (2 * _merged_rows(weight.scales)) == 0
    )
    return whole and all(
        each is None or each.data_ptr() % TMA_ALIGNMENT == 0 for each in (weight.scales, weight.minimums)
    )


def _stage_bytes(weight: Operand, warps: int) -> int:
    boxes = warps
    if weight.scales is not None and weight.group:
        scales = warps * _slice_columns(weight) // weight.group * weight.scales.itemsize
        before = TMA_ALIGNMENT - 1 if scales % TMA_ALIGNMENT or _merged_rows(weight.scales) > 1 else 0
        boxes += -(-(scales + before) // LINE) * (1 if weight.minimums is None else 2)
    return ROWS * boxes * LINE


def _fixed_bytes(warps: int) -> int:
    """Shared memory besides the stages: sums of two tiles, sums of squares, factors and barriers."""
    return warps * (SUMS_ROOM + MAX_PACKED_TOKENS * 4) + 512

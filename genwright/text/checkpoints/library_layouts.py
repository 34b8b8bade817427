"""How AutoAWQ, GPTQ, compressed-tensors, bitsandbytes and torchao store a quantized matrix in a Hugging Face folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from genwright.quant.bit_words import BITS, unpack, unpack_awq
from genwright.quant.fp8 import VALUES
from genwright.quant.tinygemm import untile
from genwright.text.checkpoints.library_matrices import Codebook, Integers, LibraryMatrix, Rectangle
from genwright.text.checkpoints.stored_parts import (
    FLOATS,
    StoredParts,
    floats8,
    integers8,
    json_of,
    offsets_of,
    signed,
)
from genwright.text.config_file import FieldReader


def _read_awq(parts: StoredParts, read: FieldReader) -> LibraryMatrix:
    """Words hold eight neighbouring outputs: qweight [inputs, outputs / 8], qzeros and scales [groups, ...]."""
    if read.text("version", "gemm").lower() != "gemm":
        raise read.wrong("version", "gemm, the only supported layout")
    rows, columns = parts.shape
    words = parts.tensor("qweight", (torch.int32,), (columns, rows // 8))
    zeros = parts.tensor("qzeros", (torch.int32,))
    groups = len(zeros) if zeros.dim() == 2 else 0
    scales = parts.tensor("scales", FLOATS, (groups, rows)).T
    parts.tensor("qzeros", (torch.int32,), (groups, rows // 8))

    def codes(some: Rectangle) -> Tensor:
        first, end, left, right = some
        return signed(unpack_awq(words[left:right, first // 8 : end // 8]).T, 4)

    offsets = offsets_of(scales, lambda: signed(unpack_awq(zeros).T, 4))
    return Integers(parts.shape, 4, codes, (8, 1), scales, parts.group(groups), offsets)


def _read_gptq(parts: StoredParts, read: FieldReader) -> LibraryMatrix:
    """Words hold neighbouring inputs: qweight [inputs / 8, outputs] for 4 bits, qzeros [groups, outputs / 8]."""
    rows, columns = parts.shape
    words = parts.tensor("qweight", (torch.int32,))
    bits = words.shape[0] * 32 // columns if words.dim() == 2 else 0
    if bits not in BITS:
        raise parts.wrong(f"'qweight' is {list(words.shape)}, so a weight has {bits} bits and not 2, 4 or 8")
    parts.tensor("qweight", (torch.int32,), (columns * bits // 32, rows))
    scales = parts.tensor("scales", FLOATS)
    groups = len(scales) if scales.dim() == 2 else 0
    scales = parts.tensor("scales", FLOATS, (groups, rows)).T
    zeros = parts.tensor("qzeros", (torch.int32,), (groups, rows * bits // 32))
    # The first version of the layout stores zero points minus one.
    less = 0 if read.text("checkpoint_format", "gptq") == "gptq_v2" else 1
    per_word, group = 32 // bits, parts.group(groups)
    columns_groups = None
    if "g_idx" in parts:
        columns_groups = parts.tensor("g_idx", (torch.int32, torch.int64), (columns,)).long()
        if not 0 <= int(columns_groups.min()) <= int(columns_groups.max()) < groups:
            raise parts.wrong(f"'g_idx' names groups outside its {groups}")
        if torch.equal(columns_groups, torch.arange(columns) // group):
            columns_groups = None

    def codes(some: Rectangle) -> Tensor:
        first, end, left, right = some
        return signed(unpack(words[left // per_word : right // per_word, first:end].T, bits), bits)

    offsets = offsets_of(scales, lambda: signed(unpack(zeros, bits).T, bits).short().add_(less))
    return Integers(parts.shape, bits, codes, (1, per_word), scales, group, offsets, columns_groups)


def _read_compressed(parts: StoredParts, read: FieldReader) -> LibraryMatrix:
    """weight_packed with words of neighbouring inputs, or weight in int8 or e4m3; weight_scale [outputs, groups]."""
    rows, columns = parts.shape
    scales = parts.tensor("weight_scale", FLOATS)
    scales = scales.reshape(1, 1) if scales.numel() == 1 else scales.reshape(len(scales), -1)
    if "weight_packed" not in parts:
        values = parts.tensor("weight", (VALUES, torch.int8), parts.shape)
        if values.dtype == VALUES:
            return floats8(parts, values, scales)
        return integers8(parts, values, scales, "weight_zero_point")
    if len(scales) not in (1, rows):
        raise parts.wrong(f"'weight_scale' has {len(scales)} rows, not {rows}")
    words = parts.tensor("weight_packed", (torch.int32,))
    width = words.shape[1] if words.dim() == 2 else 0
    bits = next((bits for bits in BITS if -(-columns * bits // 32) == width), 0)
    if not bits or len(words) != rows:
        raise parts.wrong(f"'weight_packed' is {list(words.shape)}, which no 2, 4 or 8 bits per weight give")
    per_word, offsets = 32 // bits, None
    if "weight_zero_point" in parts:
        zeros = parts.tensor("weight_zero_point", (torch.int32,), (-(-rows * bits // 32), scales.shape[1]))
        offsets = offsets_of(scales, lambda: signed(unpack(zeros.T, bits).T[:rows], bits))
    groups, group = None, parts.group(scales.shape[1])
    if "weight_g_idx" in parts:
        stored = parts.tensor("weight_g_idx", (torch.int32, torch.int64), (columns,)).long()
        if 0 <= int(stored.min()) <= int(stored.max()) < scales.shape[1]:  # else it has not been set
            groups = None if torch.equal(stored, torch.arange(columns) // group) else stored

    def codes(some: Rectangle) -> Tensor:
        first, end, left, right = some
        return signed(unpack(words[first:end, left // per_word : -(-right // per_word)], bits), bits)

    return Integers(parts.shape, bits, codes, (1, per_word), scales, group, offsets, groups)


def _read_bitsandbytes(parts: StoredParts, read: FieldReader) -> LibraryMatrix:
    """int8 with SCB, 127 times each row's scale; or nf4 and fp4 in blocks, whose largest values may be in 8 bits."""
    rows, columns = parts.shape
    if "SCB" in parts:
        values = parts.tensor("weight", (torch.int8,), parts.shape)
        return integers8(parts, values, parts.tensor("SCB", (torch.float32,), (rows,))[:, None] / 127)
    if columns % 2:
        raise parts.wrong(f"it has {columns} columns, an odd number")
    states = [name for name in sorted(parts.names) if name.startswith("weight.quant_state.bitsandbytes__")]
    if not states:
        raise parts.wrong("there is no quant_state")
    state = FieldReader(json_of(parts, states[0]), f"{parts.where} ({parts.stem}.{states[0]})")
    block = state.integer("blocksize", 1, 1 << 20)
    blocks = -(-rows * columns // block)
    stored = parts.tensor("weight", (torch.uint8,), (rows * columns // 2, 1)).view(rows, columns // 2)
    values = parts.tensor("weight.quant_map", (torch.float32,), (16,))
    if "weight.nested_absmax" not in parts:
        largest = parts.tensor("weight.absmax", (torch.float32,), (blocks,))
        return Codebook(parts.shape, stored, values, lambda first, end: largest[first:end], block)
    nested_block = state.integer("nested_blocksize", 1, 1 << 20)
    codes = parts.tensor("weight.absmax", (torch.uint8,), (blocks,))
    nested = parts.tensor("weight.nested_absmax", (torch.float32,), (-(-blocks // nested_block),))
    table = parts.tensor("weight.nested_quant_map", (torch.float32,), (256,))
    offset = state.config.get("nested_offset")
    if not isinstance(offset, int | float):
        raise state.wrong("nested_offset", "a number")

    def read_largest(first: int, end: int) -> Tensor:
        return table[codes[first:end].long()] * nested[torch.arange(first, end) // nested_block] + offset

    return Codebook(parts.shape, stored, values, read_largest, block)


def _read_torchao(parts: StoredParts, read: FieldReader) -> LibraryMatrix:
    """The tensor subclasses that torchao flattens into safetensors; the file's metadata has the class."""
    rows, columns = parts.shape
    kind = read.text("_type", "")
    if kind == "Int4Tensor":
        packed = parts.tensor("_weight_qdata", (torch.int8, torch.uint8), (rows, columns // 2))
        scales = parts.tensor("_weight_scale", FLOATS)
        groups = len(scales) if scales.dim() == 2 else 0
        scales = parts.tensor("_weight_scale", FLOATS, (groups, rows)).T
        zeros = parts.tensor("_weight_zero_point", FLOATS, (groups, rows)).T
        offsets = (lambda: zeros.float()) if zeros.any() else None

        def codes(some: Rectangle) -> Tensor:
            first, end, left, right = some
            nibbles = unpack(packed[first:end, left // 2 : -(-right // 2)].view(torch.uint8), 4)
            return signed(nibbles ^ 8, 4)  # two's complement

        return Integers(parts.shape, 4, codes, (1, 2), scales, parts.group(groups), offsets)
    if kind == "Int4TilePackedTo4dTensor":
        return _tiled(parts)
    if kind in ("Int8Tensor", "IntxUnpackedToInt8Tensor"):
        values = parts.tensor("_weight_qdata", (torch.int8,), parts.shape)
        scales = parts.tensor("_weight_scale", FLOATS)
        scales = scales.reshape(1, 1) if scales.numel() == 1 else scales.reshape(len(scales), -1)
        target = read.table("_data").table("target_dtype").text("_data", "")
        bits = 4 if target in ("int1", "int2", "int3", "int4") else 8
        return integers8(parts, values, scales, "_weight_zero_point", bits)
    if kind == "Float8Tensor":
        scales = parts.tensor("_weight_scale", FLOATS, (1, 1), (rows, 1), (1,), ())
        return floats8(parts, parts.tensor("_weight_qdata", (VALUES,), parts.shape), scales.reshape(-1, 1))
    raise parts.wrong(f"its class is {kind!r:.60}, which is not supported")


def _tiled(parts: StoredParts) -> LibraryMatrix:
    """The layout of torch's int4 GPU kernel, padded: w = q s + z with -8 <= q <= 7."""
    rows, columns = parts.shape
    words = parts.tensor("_weight_qdata", (torch.int32,))
    table = parts.tensor("_weight_scale_and_zero", FLOATS)
    padded = words.shape[1] * words.shape[3] * 32 if words.dim() == 4 else 0
    if padded < columns or words.shape[2] != 32 or words.shape[0] * 8 < rows or table.dim() != 3:
        raise parts.wrong(f"'_weight_qdata' is {list(words.shape)}")
    groups = len(table)
    if not groups or padded % groups or tuple(table.shape) != (groups, words.shape[0] * 8, 2):
        raise parts.wrong(f"'_weight_scale_and_zero' is {list(table.shape)}")
    scales, zeros = table[:, :rows].transpose(0, 1).unbind(-1)
    tile = words.shape[3] * 32

    def codes(some: Rectangle) -> Tensor:
        first, end, left, right = some
        tiles = words[first // 8 : -(-end // 8), left // tile : -(-right // tile)]
        return signed(untile(tiles), 4)[: end - first, : right - left]

    return Integers(parts.shape, 4, codes, (8, tile), scales, padded // groups, lambda: zeros.float())


@dataclass(frozen=True)
class Layout:
    """A library's layout: the ends of the names of the tensors that store a matrix, and their reader."""

    library: str
    suffixes: frozenset[str]  # of the tensors that may store a matrix
    markers: frozenset[str]  # one of them is enough to tell that it is quantized
    read: Callable[[StoredParts, FieldReader], LibraryMatrix]
    ignored: tuple[str, ...] = ()  # ends of names of tensors that are for rounding inputs or the cache


_NESTED = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_STATES = tuple(f"quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
_CACHE = tuple(f"self_attn.{name}_{kind}" for name in "qkv" for kind in ("scale", "zero_point"))
_INPUTS = tuple(f"{side}_{kind}" for side in ("input", "output") for kind in ("scale", "zero_point"))


def _layout(
    library: str, suffixes: str, markers: str, read: Callable[..., LibraryMatrix], ignored: tuple[str, ...] = ()
) -> Layout:
    return Layout(library, frozenset(suffixes.split()), frozenset(markers.split()), read, ignored)


# By the `quant_method` of config.json.
LAYOUTS: Mapping[str, Layout] = {
    "awq": _layout("AutoAWQ", "qweight qzeros scales", "qweight", _read_awq),
    "gptq": _layout("GPTQ", "qweight qzeros scales g_idx", "qweight", _read_gptq),
    "compressed-tensors": _layout(
        "compressed-tensors",
        "weight weight_packed weight_scale weight_zero_point weight_shape weight_g_idx",
        "weight_packed weight_scale",
        _read_compressed,
        (*_INPUTS, *_CACHE),
    ),
    "bitsandbytes": _layout(
        "bitsandbytes",
        " ".join(("weight SCB weight_format", *(f"weight.{name}" for name in (*_NESTED, *_STATES)))),
        "weight.absmax SCB",
        _read_bitsandbytes,
    ),
    "torchao": _layout(
        "torchao",
        "_weight_qdata _weight_scale _weight_zero_point _weight_scale_and_zero",
        "_weight_qdata",
        _read_torchao,
        ("_weight_act_quant_scale", "_weight_act_quant_zero_point"),
    ),
}

"""Write a GGUF file, which llama.cpp reads, from any checkpoint whose architecture llama.cpp knows."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.quant.ggml import TYPES
from genwright.quant.ggml_blocks import BLOCK, BLOCK_TYPES, to_blocks
from genwright.text.architectures.protocol import GGUF_OUTER, Gguf
from genwright.text.architectures.registry import GGUF as ARCHITECTURES
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Source
from genwright.text.checkpoints.check_tensors import check_tensors
from genwright.text.checkpoints.gguf import GGUF, ROPE_FACTORS
from genwright.text.checkpoints.gguf_file import TensorEntry, write_gguf_header
from genwright.text.checkpoints.protocol import Checkpoint, parse_dtype
from genwright.text.checkpoints.rope_order import neighbours_from_halves
from genwright.text.config import ModelConfig
from genwright.text.export.convert import Progress, new_path
from genwright.text.export.gguf_fields import file_metadata, gguf_architecture, rope_factors
from genwright.text.loader import Loader

F32 = 0
FLOATS = {kind.stored: number for number, kind in TYPES.items() if kind.stored is not None}
FLOAT_FILES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}  # llama.cpp's numbers of file types
PACKED_FILES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}
IN_FLOAT32 = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")  # routers
OUTER = ("token_embd.weight", "output.weight")  # in 8 bits if matrices have fewer, because they decide between tokens


@dataclass(frozen=True)
class Item:
    """A tensor to write, made of one tensor of the checkpoint or of those of all experts."""

    name: str
    sources: list[Source]
    entry: TensorEntry


def write_gguf(checkpoint: Checkpoint, target: Path, form: str, dtype: torch.dtype | None, progress: Progress) -> None:
    """Write the new file `target`; it appears complete or not at all.

    Vectors are in float32. With the form `gguf`, matrices are in `dtype`, or if that is None in the checkpoint's;
    other forms of GGUF_FORMATS are GGML's types. Matrices that are in the same format already keep their bits.
    """
    kind = None if form == "gguf" else form.upper()
    dtype = dtype or parse_dtype(checkpoint.config.dtype)
    check_tensors(checkpoint)
    cfg = checkpoint.config
    arch = gguf_architecture(checkpoint)
    items = {item.name: item for item in _items(cfg, ARCHITECTURES[arch], kind, dtype)}
    metadata = file_metadata(checkpoint, arch, PACKED_FILES[kind] if kind else FLOAT_FILES[dtype])
    factors = rope_factors(cfg)
    entries = {ROPE_FACTORS: TensorEntry(tuple(factors[0].shape), F32)} if factors else {}
    entries |= {name: item.entry for name, item in items.items()}
    with new_path(target, "file") as part, part.open("wb") as sink:
        write_gguf_header(sink, metadata, entries)
        start = sink.tell()
        for tensor in factors:
            sink.write(tensor.numpy().data)
        sink.truncate(start + sum(entry.padded for entry in entries.values()))
        _check_holds(checkpoint, part)
        for done, (name, entry) in enumerate(entries.items(), 1):
            sink.seek(start)
            for rows in _rows(checkpoint, items[name], ARCHITECTURES[arch]) if name in items else ():
                sink.write(rows.contiguous().view(-1).view(torch.uint8).numpy().data)
            start += entry.padded
            progress(done, len(entries))


def _items(cfg: ModelConfig, names: Gguf, kind: str | None, dtype: torch.dtype) -> Iterator[Item]:
    theirs = {ours: name for name, ours in names.layer.items()} | {ours: name for name, ours in GGUF_OUTER.items()}
    stacks: dict[str, list[Source]] = {}
    for source in architecture(cfg).weight_map(cfg).tensors():
        stacks.setdefault(_gguf_name(source.name, theirs), []).append(source)
    for name, sources in stacks.items():
        shape = sources[0].shape if sources[0].expert is None else (len(sources), *sources[0].shape)
        shape = shape[1:] if name.endswith("ffn_gate_inp_shexp.weight") else shape
        stored = FLOATS[dtype]
        if len(shape) == 1 or name.endswith(IN_FLOAT32):
            stored = F32
        elif kind is not None and shape[-1] % BLOCK == 0:
            stored = BLOCK_TYPES["Q8_0" if name in OUTER else kind][0]
        yield Item(name, sources, TensorEntry(shape, stored))


def _gguf_name(name: str, theirs: Mapping[str, str]) -> str:
    layer = re.fullmatch(r"model\.layers\.([0-9]+)\.(.+)", name)
    prefix, inner = (f"blk.{layer[1]}.", layer[2]) if layer else ("", name)
    inner = re.sub(r"\.experts\.[0-9]+\.", ".experts.{}.", inner)
    if inner in theirs:
        return prefix + theirs[inner]
    stem, _, suffix = inner.rpartition(".")
    return f"{prefix}{theirs[stem]}.{suffix}"


def _rows(checkpoint: Checkpoint, item: Item, names: Gguf) -> Iterator[torch.Tensor]:
    """The bytes of a tensor, one expert after the other."""
    load = Loader(checkpoint, torch.float32, torch.device("cpu"))
    block = next((form for number, form, _ in BLOCK_TYPES.values() if number == item.entry.kind), None)
    for source in item.sources:
        if block is None:
            stored = TYPES[item.entry.kind].stored
            rows = checkpoint.tensor(source.name, stored)
            if names.norm_offset and source.name.endswith("norm.weight"):
                rows = rows + names.norm_offset
        else:
            rows = torch.cat([to_blocks(packed) for packed in load.quantized(source, block)])
        if names.neighbours and re.search(r"\.[qk]_proj\.(weight|bias)$", source.name):
            rows = neighbours_from_halves(rows, checkpoint.config.head_dim)
        yield rows


def _check_holds(checkpoint: Checkpoint, path: Path) -> None:
    """Raise if GGUF cannot store a part of the configuration, such as which layers have windows."""
    ours, theirs = (_comparable(cfg) for cfg in (checkpoint.config, GGUF(path).config))
    for key, value in ours.items():
        if theirs[key] != value:
            raise UserError(f"{checkpoint.path} cannot be written as GGUF, which has no way to store its {key}.")


def _comparable(cfg: ModelConfig) -> dict[str, Any]:
    """Fields that must be the same in the file; numbers are rounded there."""
    moe = cfg.moe and replace(cfg.moe, scale=round(cfg.moe.scale, 4))
    names = ("layers", "heads", "kv_heads", "head_dim", "ffn_dim", "windows", "tied", "qkv_bias", "out_bias")
    same = {name: getattr(cfg, name) for name in (*names, "mlp_bias", "qk_norm", "mla", "query_scale")}
    return {"architecture": cfg.architecture, **same, "experts": moe}

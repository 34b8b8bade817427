"""Write any checkpoint as a Hugging Face safetensors folder or as gpt-fast's model.pth, a tensor at a time."""

import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.text.checkpoints import Checkpoint
from genwright.text.checkpoints.gptfast import LAYER, OUTER
from genwright.text.checkpoints.rope_order import neighbours_from_halves
from genwright.text.config import Rope
from genwright.text.layers.rope import frequencies
from genwright.text.models import architecture, check_tensors

FORMATS = ("safetensors", "gptfast")
SHARD_BYTES = 5 << 30
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
Progress = Callable[[int, int], None]
Shapes = dict[str, tuple[int, ...]]


def convert(checkpoint: Checkpoint, target: Path, form: str, dtype: torch.dtype, progress: Progress) -> None:
    """Write `target`, a folder that does not exist yet; it appears whole or not at all."""
    if form not in FORMATS:
        raise UserError(f"the format should be {' or '.join(FORMATS)}, and is {form!r}.")
    if target.exists():
        raise UserError(f"{target} exists already; name a folder that does not.")
    check_tensors(checkpoint)
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        (_write_safetensors if form == "safetensors" else _write_gptfast)(checkpoint, part, dtype, progress)
        _write_config(checkpoint, part, dtype)
        tokenizer = checkpoint.tokenizer()
        if tokenizer is not None:
            tokenizer.save(part)
        part.rename(target)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_config(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype) -> None:
    config = {**checkpoint.hf_config, "torch_dtype": str(dtype).removeprefix("torch.")}
    config.pop("dtype", None)
    if checkpoint.config.rope.kind == "factors":
        config["rope_scaling"] = _as_llama3(checkpoint)
    eos = list(dict.fromkeys(checkpoint.config.eos_ids + checkpoint.generation_eos()))
    for name, content in (("config.json", config), ("generation_config.json", {"eos_token_id": eos} if eos else None)):
        if content is not None:
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _as_llama3(checkpoint: Checkpoint) -> dict[str, Any]:
    """GGUF's factors as the llama3 scaling that they were made from, if they were."""
    cfg = checkpoint.config
    factor = round(max(cfg.rope.settings["factors"]), 3)
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    settings = {"factor": factor, **bounds}
    ours, theirs = (frequencies(rope, cfg.head_dim)[0] for rope in (cfg.rope, Rope(cfg.rope.theta, "llama3", settings)))
    if not torch.allclose(ours, theirs, rtol=1e-4):
        return dict(checkpoint.hf_config["rope_scaling"])
    return {"rope_type": "llama3", **settings}


def _write_safetensors(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, progress: Progress) -> None:
    cfg = checkpoint.config
    shapes: Shapes = dict(architecture(cfg).weight_map(cfg).tensors())
    shards = list(_shards(shapes, dtype.itemsize))
    files, done = {}, 0
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        with (folder / file).open("wb") as sink:
            sink.write(_header({name: shapes[name] for name in names}, dtype))
            for name in names:
                tensor = checkpoint.tensor(name, dtype).contiguous()
                sink.write(tensor.view(-1).view(torch.uint8).numpy().data)
                files[name] = file
                done += 1
                progress(done, len(shapes))
    if len(shards) > 1:
        total = sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize
        index = {"metadata": {"total_size": total}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(shapes: Shapes, itemsize: int) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        count = torch.Size(shape).numel() * itemsize
        if names and size + count > SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += count
    yield names


def _header(shapes: Shapes, dtype: torch.dtype) -> bytes:
    """The safetensors header: its length in eight bytes, then JSON padded to a multiple of eight."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_gptfast(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, progress: Progress) -> None:
    """Lay the file out with empty tensors, map it, and fill it in place: no second copy of the model in memory."""
    cfg = checkpoint.config
    if cfg.qkv_bias or cfg.out_bias or cfg.mlp_bias or cfg.qk_norm:
        raise UserError(f"{checkpoint.path} has biases or q and k norms, which gpt-fast's model.pth cannot hold.")
    sources = _gptfast_sources(cfg.layers, cfg.tied)
    path = folder / "model.pth"
    shapes: Shapes = {}
    for name, parts in sources.items():
        first, *others = (checkpoint.shape(part) for part in parts)
        shapes[name] = (sum(shape[0] for shape in (first, *others)), *first[1:])
    with torch.serialization.skip_data():
        torch.save({name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}, path)
    with path.open("rb+") as file:  # take the space now: a full disk could only kill us once the file is mapped
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        mapped = torch.load(path, mmap=True, weights_only=True)
    for done, (name, parts) in enumerate(sources.items(), 1):
        first = 0
        for part in parts:
            tensor = checkpoint.tensor(part, dtype)
            if part.endswith(("q_proj.weight", "k_proj.weight")):
                tensor = neighbours_from_halves(tensor, cfg.head_dim)
            mapped[name][first : first + len(tensor)] = tensor
            first += len(tensor)
        progress(done, len(sources))
    del mapped
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _gptfast_sources(layers: int, tied: bool) -> dict[str, list[str]]:
    """gpt-fast's tensors, and which of Hugging Face's make up each."""
    sources = {theirs: [ours] for ours, theirs in OUTER.items()}
    if tied:
        sources["output.weight"] = ["model.embed_tokens.weight"]
    for layer in range(layers):
        ours, theirs = f"model.layers.{layer}.", f"layers.{layer}."
        qkv = [f"{ours}self_attn.{part}_proj.weight" for part in "qkv"]
        sources[f"{theirs}attention.wqkv.weight"] = qkv
        sources |= {theirs + name: [ours + key] for key, name in LAYER.items() if ours + key not in qkv}
    return sources

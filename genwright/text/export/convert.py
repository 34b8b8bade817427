"""Convert any checkpoint to a Hugging Face folder, gpt-fast's model.pth or DeepSeek's shards, tensor by tensor."""

import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.quant.formats import Entry
from genwright.quant.fp8 import BLOCK, VALUES
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.check_tensors import check_tensors, has_draft
from genwright.text.checkpoints.deepseek import cuts, deepseek_name, model_args, shard_name
from genwright.text.checkpoints.gptfast import LAYER, OUTER
from genwright.text.checkpoints.protocol import SCALES, Checkpoint, parse_dtype
from genwright.text.checkpoints.rope_order import neighbours_from_halves
from genwright.text.checkpoints.safetensors_file import NAMES, size, write_header, write_tensor
from genwright.text.config import Rope
from genwright.text.ops.rope import frequencies

FORMATS = ("safetensors", "bf16", "gptfast", "deepseek")
GGUF_FORMATS = ("gguf", "q8_0", "q4_0", "q4_1")  # which gguf.py writes
SHARD_BYTES = 5 << 30
Progress = Callable[[int, int], None]


def convert(
    checkpoint: Checkpoint,
    target: Path,
    form: str,
    dtype: torch.dtype | None,
    progress: Progress,
    ranks: int = 1,
    draft: bool = True,  # with the multi-token-prediction layer, if there is one
) -> None:
    """Write the new folder `target`; it appears complete or not at all.

    A `dtype` of None keeps each tensor's own, and FP8 weights with their scales. The form `bf16` is safetensors with
    FP8 weights dequantized and all others kept. The form `deepseek` is cut for `ranks`.
    """
    if form not in FORMATS:
        raise UserError(f"The format must be one of {', '.join((*FORMATS, *GGUF_FORMATS))}, not {form!r}.")
    draft = draft and has_draft(checkpoint)
    check_tensors(checkpoint, draft)
    if form == "gptfast":
        dtype = dtype or parse_dtype(checkpoint.config.dtype)
    with new_path(target) as part:
        entries = _entries(checkpoint, dtype, draft, dequantize=form == "bf16")
        packed = any(kind == VALUES for _, kind in entries.values())
        config = hugging_face_config(checkpoint, dtype)
        if packed:
            blocks = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
            config["quantization_config"] = {**blocks, **(checkpoint.hf_config.get("quantization_config") or {})}
        if form == "gptfast" and dtype is not None:
            _write_gptfast(checkpoint, part, dtype, progress)
        elif form == "deepseek":
            _write_shards(checkpoint, part, entries, ranks, progress)
            (part / f"config_mp{ranks}.json").write_text(json.dumps(model_args(config, packed), indent=2) + "\n")
        else:
            tensors = (read_as(checkpoint, name, kind) for name, (_, kind) in entries.items())
            write_safetensors(part, entries, tensors, progress)
        write_config_files(checkpoint, part, config)


@contextmanager
def new_path(target: Path, kind: str = "folder") -> Iterator[Path]:
    """A new folder or file beside `target`, which is renamed to it at the end, or removed after an error."""
    try:
        if target.exists():
            raise UserError(f"{target} exists already; name a new {kind}.")
        part = target.with_name(target.name + ".part")
        if part.exists():  # it may hold anything, even the checkpoint that is being read
            raise UserError(
                f"{part} exists already; delete it unless another process is writing it, or name a new {kind}."
            )
        with suppress(FileExistsError):
            target.parent.mkdir(parents=True)
        part.mkdir() if kind == "folder" else part.touch(exist_ok=False)
        try:
            yield part
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True) if kind == "folder" else part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}.") from None


def write_config_files(checkpoint: Checkpoint, folder: Path, config: dict[str, Any]) -> None:
    """Write config.json, generation_config.json and the tokenizer."""
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    read = checkpoint.generation_config()
    eos = list(dict.fromkeys(checkpoint.config.eos_ids + read.ids("eos_token_id")))
    if generation := {**read.config, **({"eos_token_id": eos} if eos else {})}:
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tokenizer = checkpoint.tokenizer()
    if tokenizer is not None:
        tokenizer.save(folder)


def _entries(checkpoint: Checkpoint, dtype: torch.dtype | None, draft: bool, dequantize: bool) -> dict[str, Entry]:
    """The tensors to write, with or without the multi-token-prediction layer."""
    cfg = checkpoint.config
    weights = architecture(cfg).weight_map(cfg)
    stored_names = set(checkpoint.names())
    names = [source.name for source in weights.tensors(draft)]
    copies = [source.name for source in weights.copies if draft and source.name in stored_names]
    names += [name for name in copies if checkpoint.dtype(name) != VALUES]
    entries: dict[str, Entry] = {}
    for name in names:
        stored = checkpoint.dtype(name)
        kind = torch.bfloat16 if dequantize and stored == VALUES else dtype or stored
        entries[name] = plain_entry(checkpoint, name, kind)
        if kind == VALUES:
            scales = name + SCALES
            entries[scales] = (checkpoint.shape(scales), checkpoint.dtype(scales))
    return entries


def plain_entry(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> Entry:
    """The entry of a tensor to write in `dtype`."""
    if dtype not in NAMES:
        checkpoint.tensor(name)  # raises an error about the stored type
    return checkpoint.shape(name), dtype


def hugging_face_config(checkpoint: Checkpoint, dtype: torch.dtype | None) -> dict[str, Any]:
    """config.json of plain weights in `dtype`, or in the checkpoint's own."""
    kind = checkpoint.config.dtype if dtype is None else str(dtype).removeprefix("torch.")
    config = {**checkpoint.hf_config, "torch_dtype": kind}
    config.pop("dtype", None)
    config.pop("quantization_config", None)
    if checkpoint.config.rope.kind == "factors":
        config["rope_scaling"] = _as_llama3(checkpoint)
    return config


def _as_llama3(checkpoint: Checkpoint) -> dict[str, Any]:
    """The llama3 scaling that GGUF's factors come from; the factors themselves if they come from another."""
    cfg = checkpoint.config
    factor = round(max(cfg.rope.settings["factors"]), 3)
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    settings = {"factor": factor, **bounds}
    ours, theirs = (frequencies(rope, cfg.head_dim)[0] for rope in (cfg.rope, Rope(cfg.rope.theta, "llama3", settings)))
    if not torch.allclose(ours, theirs, rtol=1e-4):
        return dict(checkpoint.hf_config["rope_scaling"])
    return {"rope_type": "llama3", **settings}


def read_as(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in the type to write; 8-bit types as stored."""
    return checkpoint.tensor(name, None if dtype.itemsize == 1 else dtype)


def write_safetensors(
    folder: Path, entries: Mapping[str, Entry], tensors: Iterator[torch.Tensor], progress: Progress
) -> None:
    """Write one file, or several with an index; `tensors` are in the order of `entries`."""
    shards = list(_shards(entries))
    files: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        with (folder / file).open("wb") as sink:
            write_header(sink, {name: entries[name] for name in names})
            for name in names:
                write_tensor(sink, next(tensors))
                files[name] = file
                progress(len(files), len(entries))
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(map(size, entries.values()))}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(entries: Mapping[str, Entry]) -> Iterator[list[str]]:
    """The tensors of each file."""
    names: list[str] = []
    full = 0
    for name, entry in entries.items():
        if names and full + size(entry) > SHARD_BYTES:
            yield names
            names, full = [], 0
        names.append(name)
        full += size(entry)
    yield names


def _write_shards(
    checkpoint: Checkpoint, folder: Path, entries: Mapping[str, Entry], ranks: int, progress: Progress
) -> None:
    """Write all of DeepSeek's shards at the same time, so that each tensor is read once."""
    moe = checkpoint.config.moe
    if checkpoint.config.architecture != "deepseek" or moe is None:
        raise UserError(f"{checkpoint.path} is not a DeepSeek model; only those can be converted to DeepSeek's shards.")
    if moe.experts % ranks:
        raise UserError(f"{checkpoint.path} has {moe.experts} experts, which is not a multiple of {ranks} ranks.")
    sources = cuts(checkpoint.config)
    parts: list[dict[str, Entry]] = [{} for _ in range(ranks)]
    shares: dict[str, dict[int, Part]] = {}  # each rank's part of each tensor
    for name, (shape, dtype) in entries.items():
        source = sources[name.removesuffix(SCALES)]._replace(name=name, shape=shape)
        if name.endswith(SCALES):
            source = source._replace(unit=1)  # the matrix itself was cut in whole heads
        owner, unit = source.owner(moe.experts, ranks), BLOCK if dtype == VALUES else 1
        if owner is None:
            shares[name] = {rank: source.part(rank, ranks, unit) for rank in range(ranks)}
        else:
            shares[name] = {owner: source.whole}
        for rank, part in shares[name].items():
            parts[rank][deepseek_name(name)] = (part.shape(shape), dtype)
    with ExitStack() as stack:
        sinks = [stack.enter_context((folder / shard_name(rank, ranks)).open("wb")) for rank in range(ranks)]
        for sink, tensors in zip(sinks, parts, strict=True):
            write_header(sink, tensors)
        for done, (name, (_, dtype)) in enumerate(entries.items(), 1):
            tensor = read_as(checkpoint, name, dtype)
            for rank, part in shares[name].items():
                write_tensor(sinks[rank], tensor.narrow(*part))
            progress(done, len(entries))


def check_gptfast(checkpoint: Checkpoint, experts: bool = True) -> None:
    """Raise if gpt-fast's model.pth cannot hold a model; only its own script writes experts."""
    cfg = checkpoint.config
    extra = cfg.qkv_bias or cfg.out_bias or cfg.mlp_bias or cfg.qk_norm or (cfg.moe and not experts)
    if cfg.architecture != "llama" or extra:
        raise UserError(
            f"{checkpoint.path} has biases, q and k norms{'' if experts else ', experts'} or an architecture other "
            "than Llama's, which gpt-fast's model.pth cannot hold."
        )


def _write_gptfast(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, progress: Progress) -> None:
    """Save empty tensors, memory-map the file and fill it in place, so that memory does not hold the model."""
    cfg = checkpoint.config
    check_gptfast(checkpoint, experts=False)
    sources = _gptfast_sources(cfg.layers, cfg.tied)
    path = folder / "model.pth"
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parts in sources.items():
        stacked = [checkpoint.shape(part) for part in parts]
        shapes[name] = (sum(shape[0] for shape in stacked), *stacked[0][1:])
    with torch.serialization.skip_data():
        torch.save({name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}, path)
    with path.open("rb+") as file:  # allocate now: once the file is mapped, a full disk would kill the process
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
    """gpt-fast's tensors, and the Hugging Face tensors that make up each."""
    sources = {theirs: [ours] for ours, theirs in OUTER.items()}
    if tied:
        sources["output.weight"] = ["model.embed_tokens.weight"]
    for layer in range(layers):
        ours, theirs = f"model.layers.{layer}.", f"layers.{layer}."
        qkv = [f"{ours}self_attn.{part}_proj.weight" for part in "qkv"]
        sources[f"{theirs}attention.wqkv.weight"] = qkv
        sources |= {theirs + name: [ours + key] for key, name in LAYER.items() if ours + key not in qkv}
    return sources

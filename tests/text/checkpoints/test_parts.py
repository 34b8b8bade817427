"""Parts of tensors: joined they equal the whole tensor in every format, and reading one does not read the rest."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from quant.test_tinygemm import pack_tiles, quantize_groups
from text.checkpoints.library_folders import write_library_folder
from text.checkpoints.test_opt import write_arrays
from text.checkpoints.tiny_gguf import tiny_model, write_gguf
from text.checkpoints.written_formats import gptfast_tensors, write_bin
from text.deepseek_folders import in_fp8, with_draft
from text.families import make
from torch.utils._python_dispatch import TorchDispatchMode

from genwright.quant.formats import parse_format
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.checkpoints.safetensors_file import write_header
from genwright.text.export.convert import convert
from genwright.text.export.quantize import quantize


def quiet(done: int, total: int) -> None:
    pass


def write_hf(root: Path, family: str = "qwen2") -> Path:
    make(family, root / "hf")
    return root / "hf"


def write_gptfast(root: Path, kind: str) -> Path:
    """gpt-fast's file of a tiny Llama; int4 with rows that are padded to 1,024."""
    model = tiny_model("llama", hidden_size=128, head_dim=32, intermediate_size=160)
    model.config.save_pretrained(root)
    tensors = gptfast_tensors(model)
    for name, weight in list(tensors.items()):
        stem = name.removesuffix("weight")
        if kind == "plain" or weight.dim() < 2 or name.startswith("tok"):
            continue
        if kind == "int8":
            scales = weight.abs().amax(dim=1) / 127
            tensors |= {name: (weight / scales[:, None]).round().to(torch.int8), f"{stem}scales": scales}
        else:
            q, scales = quantize_groups(torch.nn.functional.pad(weight, (0, 1024 - weight.shape[1])), 32)
            tensors |= {name: pack_tiles(q, 2), f"{stem}scales_and_zeros": scales}
    torch.save(tensors, root / "model.pth")
    return root


def write_other(root: Path, kind: str) -> Path:
    if kind == "bin":
        write_bin(tiny_model("llama"), root)
        return root
    if kind == "opt":
        folder = write_arrays(make("opt", root / "hf"), root / "np")
        (folder / "config.json").write_text((root / "hf" / "config.json").read_text())
        return folder
    if kind in ("fp8", "shards"):
        make("deepseek-v3-blocks", root / "float32")
        with_draft(root / "float32")
        in_fp8(root / "float32", root / "fp8")
        if kind == "shards":
            convert(open_checkpoint(str(root / "fp8")), root / "shards", "deepseek", None, quiet, 4)
        return root / kind
    quantize(open_checkpoint(str(write_hf(root))), root / "out", parse_format(kind), torch.device("cpu"), quiet)
    return root / "out"


FORMATS: dict[str, Callable[[Path], Path | str]] = {
    "safetensors": write_hf,
    **{kind: lambda root, kind=kind: write_other(root, kind) for kind in ("bin", "opt", "fp8", "shards")},
    **{f"gptfast {kind}": lambda root, kind=kind: write_gptfast(root, kind) for kind in ("plain", "int8", "int4")},
    **{
        f"gguf {kind}": lambda root, kind=kind: write_gguf(
            root / "model.gguf", tiny_model("llama", intermediate_size=1024), kind
        )
        for kind in ("F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0")
    },
    **{
        f"quantized {form}": lambda root, form=form: write_other(root, form)
        for form in ("int8", "int4", "int4:g64:asym", "fp8", "fp8:channel")
    },
    **{
        f"{kind}, int4": lambda root, kind=kind: write_library_folder(root, kind)[0]
        for kind in ("awq", "gptq sym", "gptq asym", "compressed int4 asym", "torchao Int4TilePackedTo4dTensor")
    },
    "compressed fp8 channel": lambda root: write_library_folder(root, "compressed fp8 channel")[0],
    "gptq act-order": lambda root: write_library_folder(root, "gptq act-order")[0],
    "bitsandbytes nf4": lambda root: write_library_folder(root, "bitsandbytes nf4")[0],
    "random": lambda root: "random:stories15M,layers=1",
}


@pytest.mark.parametrize("kind", FORMATS)
def test_parts_join_to_the_whole(kind: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(FORMATS[kind](tmp_path)))
    packed = set()
    for name in checkpoint.names():
        if name.startswith(("model.layers.1.", "model.layers.2.")) or "experts.5" in name:
            continue  # the same again
        shape, form = checkpoint.shape(name), checkpoint.format(name)
        whole = checkpoint.tensor(name, torch.float32)
        for axis, size in enumerate(shape):
            cuts = [0, size // 3, size // 3 + 1, size]  # anywhere, also within heads and groups
            parts = [Part(axis, start, end - start) for start, end in pairwise(cuts) if start < end]
            assert torch.equal(torch.cat([checkpoint.tensor(name, torch.float32, p) for p in parts], axis), whole), name
            if form is not None and size > (unit := form.unit(axis)):
                packed.add(axis)
                parts = [Part(axis, 0, unit), Part(axis, unit, size - unit)]
                joined = [checkpoint.packed(name, part).dequantize(torch.float32) for part in parts]
                assert torch.equal(torch.cat(joined, axis), whole), name
    assert packed == ({0, 1} if any(form in kind for form in ("fp8", "shards", "int", "Q8", "Q4", "Q5")) else set())


class Allocations(TorchDispatchMode):
    """Counts the bytes of tensors that operations make, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        for each in out if isinstance(out, tuple | list) else [out]:
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in known:
                self.bytes += each.numel() * each.element_size()
        return out


@pytest.mark.parametrize("kind", FORMATS)
def test_a_part_is_read_without_the_rest(kind: str, tmp_path: Path) -> None:
    """Memory allocated shrinks with the part, for rows and columns, plain and packed."""
    checkpoint = open_checkpoint(str(FORMATS[kind](tmp_path)))
    decoder = "model.decoder.layers.0." if kind == "opt" else "model.layers.0."
    name = decoder + ("fc2.weight" if kind == "opt" else "mlp.down_proj.weight")
    shape, form = checkpoint.shape(name), checkpoint.format(name)
    for axis in (0, 1):
        unit = 32 if "Q5" in kind else 8 if form is None else max(form.unit(axis), 8)
        part = Part(axis, shape[axis] // unit // 2 * unit, unit)
        share = part.length / shape[axis]
        reads: list[Callable[..., Any]] = [lambda *args: checkpoint.tensor(name, torch.float32, *args)]
        if form is not None:
            reads.append(lambda *args: checkpoint.packed(name, *args))
        for read in reads:
            spent = []
            for arguments in ((), (part,)):
                with Allocations() as counted:
                    read(*arguments)
                spent.append(counted.bytes)
            # Lookup tables, and a piece or two of random values, cost the same for any part.
            fixed = {"random": 1 << 21, "gguf Q5_0": 1 << 16}.get(kind, 1 << 12)
            assert spent[1] <= 2 * share * spent[0] + fixed, (axis, spent)


def resident(path: Path) -> int:
    """Bytes of a mapped file that this process has touched."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    sizes, inside = 0, False
    for line in lines:
        if line[0] in "0123456789abcdef":
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            sizes += int(line.split()[1]) << 10
    return sizes


def test_only_the_pages_of_a_part_are_read(tmp_path: Path) -> None:
    """The file has 256 MB and is sparse."""
    tiny_model("llama").config.save_pretrained(tmp_path)
    path, shape = tmp_path / "model.safetensors", (1 << 20, 64)
    with path.open("wb") as sink:
        write_header(sink, {"lm_head.weight": (shape, torch.float32)})
        sink.truncate(sink.tell() + (1 << 28))
    checkpoint = open_checkpoint(str(tmp_path))
    before = resident(path)
    assert checkpoint.tensor("lm_head.weight", torch.bfloat16, Part(0, 500_000, 10)).sum() == 0
    assert 0 < resident(path) - before <= 1 << 23  # the kernel reads ahead

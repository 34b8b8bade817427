"""gpt-fast's checkpoint files: loaded into its modules, or opened by the engine."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from genwright.dropin.transformer.int4 import WeightOnlyInt4QuantHandler
from genwright.dropin.transformer.int8 import WeightOnlyInt8QuantHandler
from genwright.dropin.transformer.model_args import ModelArgs
from genwright.dropin.transformer.modules import Transformer
from genwright.errors import UserError
from genwright.quant.tinygemm import columns
from genwright.text.architectures.class_defaults import read_config_json
from genwright.text.architectures.registry import read_config
from genwright.text.checkpoints.pickled import load_pickled
from genwright.text.llm import LLM


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .pth file, which is never unpickled."""
    if not path.is_file():
        raise UserError(f"There is no checkpoint {path}.")
    loaded = load_pickled(path)
    inner = loaded.get("model")
    return {name: tensor for name, tensor in (inner or loaded).items() if isinstance(tensor, Tensor)}


def save_state(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a .pth file; it appears complete or not at all."""
    part = path.with_suffix(".pth.part")
    try:
        torch.save(state, part)
        part.replace(path)
    except RuntimeError:  # which PyTorch raises for every failure to write
        raise UserError(f"{path} cannot be written; the disk may be full.") from None
    finally:
        part.unlink(missing_ok=True)


def load_modules(path: Path, kind: type[Transformer], device: str, precision: torch.dtype) -> Transformer:
    """The model that config.json or the folder's name says, with the file's weights, which may be int8 or int4."""
    state, args = read_state(path), find_args(path.parent, kind.args)
    with torch.device("meta"):
        model = kind(args)
    if (found := weight_format(state)) is not None:
        print(f"Using {found} weight-only quantization!")
    if found == "int4":
        tiles = next(name for name in state if name.endswith(".scales_and_zeros"))
        words = state[tiles.replace("scales_and_zeros", "weight")]
        model = WeightOnlyInt4QuantHandler(
            model, columns(words) // len(state[tiles]), 2 * words.shape[3]
        ).convert_for_runtime()
    elif found == "int8":
        model = WeightOnlyInt8QuantHandler(model).convert_for_runtime()
    model.load_state_dict(state, assign=True)
    return model.to(device=device, dtype=precision).eval()


def find_args(folder: Path, args: type[ModelArgs]) -> ModelArgs:
    """The shape that config.json says, else the folder's name."""
    file = folder / "config.json"
    if not file.exists():
        return args.from_name(folder.name)
    return args.from_config(read_config(read_config_json(file), str(file)))


def weight_format(state: Mapping[str, Tensor]) -> str | None:
    """int8, int4, or None if the weights are floats."""
    endings = {name.rpartition(".")[2] for name in state}
    return "int4" if "scales_and_zeros" in endings else "int8" if endings & {"scales", "scales1"} else None


def model_size(state: Mapping[str, Tensor]) -> tuple[int, int]:
    """Bytes that decoding a token reads, floats as bfloat16, and how many numbers; the embedding does not count."""
    read = [tensor for name, tensor in state.items() if not name.startswith("tok_embeddings")]
    return sum(t.numel() * (2 if t.is_floating_point() else t.itemsize) for t in read), sum(t.numel() for t in read)


@contextmanager
def open_llm(path: Path, args: type[ModelArgs], draft: Path | None = None, **settings: Any) -> Iterator[LLM]:
    """An LLM of gpt-fast's file, and of a draft's; the folder's name says the shape if no config.json does."""
    with ExitStack() as stack:
        model = stack.enter_context(_described(path, args))
        if draft is not None:
            settings["draft"] = str(stack.enter_context(_described(draft, args)))
        yield stack.enter_context(LLM(model, dtype="bfloat16", **settings))


@contextmanager
def _described(path: Path, args: type[ModelArgs]) -> Iterator[Path]:
    if not path.is_file():
        raise UserError(f"There is no checkpoint {path}.")
    if (path.parent / "config.json").exists():
        yield path
        return
    config = args.from_name(path.parent.name).hugging_face()
    with TemporaryDirectory() as folder:
        for file in (path, *path.parent.glob("tokenizer*")):
            (Path(folder) / file.name).symlink_to(file.resolve())
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield Path(folder) / path.name

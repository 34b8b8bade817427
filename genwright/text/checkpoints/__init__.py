"""Checkpoints: one file per format, found by content; all speak of tensors by their Hugging Face names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from genwright.errors import UserError
from genwright.quant.formats import Format
from genwright.quant.fp8 import VALUES, Fp8Blocks
from genwright.quant.packed import Packed
from genwright.text.catalogue import nearest
from genwright.text.config import ModelConfig
from genwright.text.config_file import FieldReader
from genwright.text.tokenizer.tokenizer import Tokenizer


class Checkpoint(Protocol):
    """A model's configuration, tokenizer and tensors, read when asked for."""

    path: str
    config: ModelConfig
    hf_config: dict[str, Any]
    stays_packed: bool = True  # whether packed weights stay so unless told otherwise
    only_widened: Sequence[str] = ()  # quantized types of its weights that are not computed with as they are stored

    def names(self) -> Sequence[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> torch.dtype:
        """Of the stored tensor, or what it is widened to where that is no type of torch."""
        ...

    def where(self, name: str) -> str:
        """The file that holds a tensor, or that should."""
        ...

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor, as stored or in `dtype`; it may be a view of the file."""
        ...

    def format(self, name: str) -> Format | None:
        """The format that a matrix is stored in; None is plain floats, or what is only ever widened."""
        return Format("fp8") if self.dtype(name) == VALUES else None

    def packed(self, name: str) -> Packed:
        """A matrix in that format; it may be a view of the file."""
        return Fp8Blocks(self.tensor(name), self.tensor(f"{name}_scale_inv", torch.float32))

    def tokenizer(self) -> Tokenizer | None: ...

    def generation_config(self) -> FieldReader:
        """How answers are drawn and what ends them, as generation_config.json says it."""
        ...


def open_checkpoint(model: str, arch: str | None = None) -> Checkpoint:
    """Open a folder, a file or a `random:` name; `arch` names the shape of a checkpoint that has no configuration."""
    from genwright.text.checkpoints.deepseek import DeepSeekShards
    from genwright.text.checkpoints.gguf import GGUF
    from genwright.text.checkpoints.gptfast import GptFast
    from genwright.text.checkpoints.huggingface import HuggingFace
    from genwright.text.checkpoints.opt import OptArrays
    from genwright.text.checkpoints.quantized import Quantized
    from genwright.text.checkpoints.random import RandomWeights

    if model.startswith("random:"):
        return RandomWeights(model)
    path = Path(model).expanduser()
    if not path.exists():
        hint = nearest(model) or "`genwright pull` lists the models that can be fetched."
        raise UserError(f"There is no file or folder {path}; {hint}")
    if path.is_dir() and Quantized.recognises(path):
        return Quantized(path)
    if path.is_dir() and HuggingFace.recognises(path):
        return HuggingFace(path)
    if path.is_dir() and DeepSeekShards.recognises(path):
        return DeepSeekShards(path, arch)
    if path.is_dir() and OptArrays.recognises(path):
        return OptArrays(path, arch)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file() and GGUF.recognises(file):
            return GGUF(file)
        if file.is_file() and GptFast.recognises(file):
            return GptFast(file, arch)
    if path.is_file() and HuggingFace.recognises(path.parent):  # one of the folder's own files
        return open_checkpoint(str(path.parent), arch)
    raise UserError(
        f"{path} holds no checkpoint that Genwright knows: a Hugging Face folder (config.json with safetensors or "
        ".bin files), a GGUF file, gpt-fast's model.pth, DeepSeek's model*-mp*.safetensors, or FlexLLMGen's arrays."
    )


def parse_dtype(name: str) -> torch.dtype:
    """float32, float16 or bfloat16."""
    if name not in ("float32", "float16", "bfloat16"):
        raise UserError(f"dtype should be auto, float32, float16 or bfloat16, and is {name!r}.")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def widen(checkpoint: Checkpoint, name: str, stored: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A stored tensor in `dtype`, FP8 ones by their scales; None leaves it as it is."""
    if stored.dtype == VALUES and dtype is not None:
        return checkpoint.packed(name).dequantize(dtype)
    if stored.dtype in (VALUES, torch.float8_e8m0fnu):
        return stored if dtype is None else stored.to(dtype)
    return cast(stored, dtype, f"{checkpoint.where(name)} stores {name!r}")


def cast(tensor: torch.Tensor, dtype: torch.dtype | None, what: str) -> torch.Tensor:
    """A stored tensor in `dtype`; `what` begins the sentence that refuses one that is not of plain floats."""
    plain = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    if tensor.dtype not in plain or tensor.layout != torch.strided:
        kind = f"{tensor.dtype} {tensor.layout}".replace("torch.", "").removesuffix(" strided")
        raise UserError(f"{what} as {kind}; weights are read from plain floats of 16, 32 or 64 bits.")
    return tensor.detach() if dtype is None else tensor.detach().to(dtype)


def reason(error: Exception) -> str:
    """What a library complains of, cut down to the end of a sentence."""
    text = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text[:160])

"""A Hugging Face folder: config.json with safetensors or .bin files, one or several with an index."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from genwright.errors import UserError
from genwright.text.architectures.class_defaults import read_config_json
from genwright.text.architectures.registry import read_config
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.pickled import load_pickled
from genwright.text.checkpoints.protocol import Checkpoint, convert_dtype, reason
from genwright.text.checkpoints.safetensors_file import open_safetensors
from genwright.text.config_file import read_json

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES = ("model.safetensors", "pytorch_model.bin")


class HuggingFace(Checkpoint):
    """Tensors are views of memory-mapped files."""

    def __init__(self, folder: Path):
        self.path, self.folder = str(folder), folder
        self.hf_config: dict[str, Any] = read_config_json(folder / "config.json")
        self.config = read_config(self.hf_config, str(folder / "config.json"))
        self._files: dict[str, Any] = {}
        self._views: dict[str, torch.Tensor] = {}
        self._listing = next(name for name in (*_INDEXES, *_SINGLES) if (folder / name).exists())
        self._where = self._locate()
        # Larger OPT checkpoints were saved from the inner model, so their names lack the prefix "model.".
        opt = self.config.architecture == "opt" and any(name.startswith("decoder.") for name in self._where)
        self._prefix = "model." if opt else ""
        if opt:
            self._where = {n if n == "lm_head.weight" else f"model.{n}": file for n, file in self._where.items()}

    @staticmethod
    def recognises(folder: Path) -> bool:
        weights = any((folder / name).exists() for name in (*_INDEXES, *_SINGLES))
        return (folder / "config.json").exists() and weights

    @staticmethod
    def quant_method(folder: Path) -> str | None:
        """The `quant_method` of a folder's config.json; None for other folders and for plain weights."""
        if not HuggingFace.recognises(folder):
            return None
        quantization = read_json(folder / "config.json").get("quantization_config")
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        return method if isinstance(method, str) else None

    def names(self) -> Sequence[str]:
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._stored(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._stored(name).dtype

    def where(self, name: str) -> str:
        return str(self.folder / self._where.get(name, self._listing))

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        return convert_dtype(self, name, self._stored(name), dtype, part)

    def _stored(self, name: str) -> torch.Tensor:
        """A view of the file; views are kept, because a large model has many tensors and a new view takes 10 us."""
        if name in self._views:
            return self._views[name]
        file, stored = self._open(self._where[name]), name.removeprefix(self._prefix)
        detail = ""
        try:
            tensor = file.get(stored) if isinstance(file, dict) else file.get_tensor(stored)
        except (SafetensorError, UnicodeEncodeError) as error:
            tensor, detail = None, f": {reason(error)}"
        if not isinstance(tensor, torch.Tensor):
            raise UserError(f"{self.where(name)} must hold the tensor {name!r:.80} but does not{detail}.")
        self._views[name] = tensor
        return tensor

    def _locate(self) -> dict[str, str]:
        """The file of each tensor."""
        if self._listing in _SINGLES:
            return dict.fromkeys(self._open(self._listing).keys(), self._listing)
        path = self.folder / self._listing
        where = read_json(path).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
            raise UserError(f"{path} must give 'weight_map' as an object of tensor names and file names.")
        here = {file.name for file in self.folder.iterdir() if file.is_file()}
        for file in sorted(set(where.values()) - here):
            raise UserError(f"{path} names the file {file!r:.80}, which is not in its folder.")
        return where

    def _open(self, name: str) -> Any:
        if name not in self._files:
            path = self.folder / name
            self._files[name] = load_pickled(path) if name.endswith(".bin") else open_safetensors(path)
        return self._files[name]

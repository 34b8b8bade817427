"""A Hugging Face folder: config.json beside safetensors or .bin files, single or sharded by an index."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from genwright.errors import UserError
from genwright.text.architectures.registry import read_config
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.pickled import load_pickled
from genwright.text.checkpoints.protocol import Checkpoint, reason, widen
from genwright.text.checkpoints.safetensors_file import DTYPES, open_safetensors
from genwright.text.config_file import read_json

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES = ("model.safetensors", "pytorch_model.bin")


class HuggingFace(Checkpoint):
    """Tensors stay in the files' own pages until they are copied into a model."""

    def __init__(self, folder: Path):
        self.path = str(folder)
        self.folder = folder
        self.hf_config: dict[str, Any] = read_json(folder / "config.json")
        self.config = read_config(self.hf_config, str(folder / "config.json"))
        self._files: dict[str, Any] = {}
        self._where = self._locate()
        # Larger OPT checkpoints were saved from the inner model, whose tensors lack the first part of the name.
        opt = self.config.architecture == "opt" and any(name.startswith("decoder.") for name in self._where)
        self._bare = "model." if opt else None
        if opt:
            self._where = {
                name if name == "lm_head.weight" else f"model.{name}": self._where[name] for name in self._where
            }

    @staticmethod
    def recognises(folder: Path) -> bool:
        weights = any((folder / name).exists() for name in (*_INDEXES, *_SINGLES))
        return (folder / "config.json").exists() and weights

    def names(self) -> Sequence[str]:
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._read(name, lambda file, stored: file.get_slice(stored).get_shape(), lambda t: t.shape))

    def dtype(self, name: str) -> torch.dtype:
        kind = self._read(name, lambda file, stored: file.get_slice(stored).get_dtype(), lambda t: t.dtype)
        return DTYPES.get(kind, torch.uint8) if isinstance(kind, str) else kind

    def where(self, name: str) -> str:
        return str(self.folder / self._where.get(name, self._listing))

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        return widen(self, name, self._stored(name), dtype, part)

    def _stored(self, name: str) -> torch.Tensor:
        """A view of the file."""
        stored: torch.Tensor = self._read(name, lambda file, stored: file.get_tensor(stored), lambda tensor: tensor)
        return stored

    def _locate(self) -> dict[str, str]:
        """Which file holds each tensor."""
        for name in _INDEXES:
            if (self.folder / name).exists():
                self._listing = name
                return self._read_index(self.folder / name)
        self._listing = next(name for name in _SINGLES if (self.folder / name).exists())
        return dict.fromkeys(self._open(self._listing).keys(), self._listing)

    def _read_index(self, path: Path) -> dict[str, str]:
        where = read_json(path).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
            raise UserError(f"{path} should give 'weight_map' as an object of tensor names and file names.")
        here = {file.name for file in self.folder.iterdir() if file.is_file()}
        for file in sorted(set(where.values()) - here):
            raise UserError(f"{path} names the file {file!r:.80}, which is not in its folder.")
        return where

    def _open(self, name: str) -> Any:
        if name not in self._files:
            load = load_pickled if name.endswith(".bin") else open_safetensors
            self._files[name] = load(self.folder / name)
        return self._files[name]

    def _read(self, name: str, mapped: Callable[[Any, str], Any], loaded: Callable[[torch.Tensor], Any]) -> Any:
        """What one of the functions finds out about a tensor: the first in a safetensors file, else the other."""
        file = self._open(self._where[name])
        stored = name if self._bare is None else name.removeprefix(self._bare)
        if isinstance(file, dict):
            tensor = file.get(stored)
            if not isinstance(tensor, torch.Tensor):
                raise self._lacks(name)
            return loaded(tensor)
        try:
            return mapped(file, stored)
        except (SafetensorError, UnicodeEncodeError) as error:
            raise self._lacks(name, error) from None

    def _lacks(self, name: str, error: Exception | None = None) -> UserError:
        detail = f": {reason(error)}" if error else ""
        return UserError(
            f"{self.folder / self._where[name]} should hold the tensor {name!r:.80}, and does not{detail}."
        )

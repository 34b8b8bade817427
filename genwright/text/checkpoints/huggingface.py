"""A Hugging Face folder: config.json beside safetensors or .bin files, single or sharded by an index."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from genwright.errors import UserError
from genwright.text.checkpoints import cast, reason
from genwright.text.checkpoints.pickled import load_pickled
from genwright.text.config import FieldReader, ModelConfig, read_json
from genwright.text.tokenizer import Tokenizer

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLES = ("model.safetensors", "pytorch_model.bin")


class HuggingFace:
    """Tensors stay in the files' own pages until they are copied into a model."""

    def __init__(self, folder: Path):
        self.path = str(folder)
        self.folder = folder
        self.hf_config: dict[str, Any] = read_json(folder / "config.json")
        self.config = ModelConfig.from_hf(self.hf_config, str(folder / "config.json"))
        self._files: dict[str, Any] = {}
        self._where = self._locate()

    @staticmethod
    def recognises(folder: Path) -> bool:
        weights = any((folder / name).exists() for name in (*_INDEXES, *_SINGLES))
        return (folder / "config.json").exists() and weights

    def names(self) -> Sequence[str]:
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        file = self._open(self._where[name])
        if isinstance(file, dict):
            return tuple(self._stored(name, file).shape)
        try:
            return tuple(file.get_slice(name).get_shape())
        except SafetensorError as error:
            raise self._lacks(name, error) from None

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        file = self._open(self._where[name])
        if isinstance(file, dict):
            tensor = self._stored(name, file)
        else:
            try:
                tensor = file.get_tensor(name)
            except SafetensorError as error:
                raise self._lacks(name, error) from None
        return cast(tensor, dtype, f"{self.folder / self._where[name]} stores {name!r}")

    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.from_folder(self.folder)

    def generation_eos(self) -> tuple[int, ...]:
        path = self.folder / "generation_config.json"
        return FieldReader(read_json(path), str(path)).ids("eos_token_id") if path.exists() else ()

    def _locate(self) -> dict[str, str]:
        """Which file holds each tensor."""
        for name in _INDEXES:
            if (self.folder / name).exists():
                return self._read_index(self.folder / name)
        single = next(name for name in _SINGLES if (self.folder / name).exists())
        return dict.fromkeys(self._open(single).keys(), single)

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
            path = self.folder / name
            if name.endswith(".bin"):
                self._files[name] = load_pickled(path)
            else:
                try:
                    self._files[name] = safe_open(path, framework="pt")
                except (SafetensorError, OSError, ValueError) as error:
                    raise UserError(f"{path} is not a whole safetensors file: {reason(error)}.") from None
        return self._files[name]

    def _stored(self, name: str, file: dict[str, Any]) -> torch.Tensor:
        tensor = file.get(name)
        if not isinstance(tensor, torch.Tensor):
            raise self._lacks(name)
        return tensor

    def _lacks(self, name: str, error: Exception | None = None) -> UserError:
        detail = f": {reason(error)}" if error else ""
        return UserError(f"{self.folder / self._where[name]} should hold the tensor {name!r:.80}, and does not{detail}.")

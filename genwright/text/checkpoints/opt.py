"""FlexLLMGen's folders of OPT weights: one NumPy file per tensor, with the tensor's name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from genwright.errors import UserError
from genwright.text.architectures.class_defaults import read_config_json
from genwright.text.architectures.registry import find_shape, read_config
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.protocol import Checkpoint, cast, reason
from genwright.text.config import ModelConfig

_EMBEDDING = "decoder.embed_tokens.weight"
_MAGIC = b"\x93NUMPY"


class OptArrays(Checkpoint):
    """Tensors are views of memory-mapped files."""

    def __init__(self, folder: Path, arch: str | None = None):
        self.path, self.folder = str(folder), folder
        self._names = {_hugging_face_name(file.name): file for file in sorted(folder.glob("decoder.*"))}
        config = folder / "config.json"
        given = arch is None and config.exists()
        self.hf_config: dict[str, Any] = read_config_json(config) if given else find_shape(folder, arch, self._fits)
        self.config = read_config(self.hf_config, str(config) if given else self.path)
        if self.config.architecture != "opt":
            raise UserError(f"{self.path} holds OPT's arrays, but its configuration is of another architecture.")

    @staticmethod
    def recognises(folder: Path) -> bool:
        for path in (folder / _EMBEDDING, folder / f"{_EMBEDDING}.npy"):
            if path.is_file():
                with path.open("rb") as file:
                    return file.read(len(_MAGIC)) == _MAGIC
        return False

    def names(self) -> Sequence[str]:
        return list(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._array(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        return self.tensor(name).dtype

    def where(self, name: str) -> str:
        return str(self._names[name]) if name in self._names else self.path

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        array = self._array(name)
        if array.dtype not in (np.float16, np.float32, np.float64):
            raise UserError(f"{self.where(name)} stores {array.dtype}; weights must be float16, float32 or float64.")
        return cast(torch.from_numpy(np.asarray(array)), dtype, f"{self.where(name)} stores its array", part)

    def _array(self, name: str) -> np.ndarray:
        path = self._names[name]
        try:
            # Copy-on-write, so that writing to a view does not change the file.
            return np.lib.format.open_memmap(path, mode="c")
        except (ValueError, OSError, EOFError, SyntaxError) as error:
            raise UserError(f"{path} is not a valid NumPy file: {reason(error)}.") from None

    def _fits(self, cfg: ModelConfig) -> bool:
        last, after = (f"model.decoder.layers.{layer}.fc1.weight" for layer in (cfg.layers - 1, cfg.layers))
        if cfg.opt is None or last not in self._names or after in self._names:
            return False
        embedding = self.shape(f"model.{_EMBEDDING}")
        return embedding == (cfg.vocab_size, cfg.opt.embed_dim) and self.shape(last) == (cfg.ffn_dim, cfg.dim)


def _hugging_face_name(file: str) -> str:
    """FlexLLMGen calls the last norm `decoder.layer_norm`."""
    return "model." + file.removesuffix(".npy").replace("decoder.layer_norm.", "decoder.final_layer_norm.")

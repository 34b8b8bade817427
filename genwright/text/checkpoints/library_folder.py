"""Hugging Face folders that AutoAWQ, GPTQ, compressed-tensors, bitsandbytes or torchao quantized."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from genwright.quant.formats import Format
from genwright.quant.packed import Packed
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.huggingface import HuggingFace
from genwright.text.checkpoints.library_layouts import LAYOUTS
from genwright.text.checkpoints.library_matrices import LibraryMatrix
from genwright.text.checkpoints.protocol import parse_dtype
from genwright.text.checkpoints.stored_parts import StoredParts
from genwright.text.config_file import FieldReader


class LibraryFolder(HuggingFace):
    """Quantized matrices appear under their own name and shape, in one of our formats if that holds them exactly."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._read = FieldReader(self.hf_config, str(folder / "config.json")).table("quantization_config")
        self._layout = LAYOUTS[self._read.text("quant_method", "")]
        sources = list(architecture(self.config).weight_map(self.config).tensors(draft=True))
        self._used = {source.name for source in sources}
        shapes = {s.name: s.shape for s in sources if len(s.shape) == 2 and s.name.endswith(".weight")}
        stored = self._stored_parts({name.removesuffix(".weight") for name in shapes})
        self._parts = {
            name: stored[stem]
            for name in shapes
            if (stem := name.removesuffix(".weight")) in stored and not self._layout.markers.isdisjoint(stored[stem])
        }
        self._shapes = {name: (shapes[name][0], shapes[name][1]) for name in self._parts}
        self._matrices: dict[str, LibraryMatrix] = {}

    @staticmethod
    def recognises(folder: Path) -> bool:
        return HuggingFace.quant_method(folder) in LAYOUTS

    def names(self) -> Sequence[str]:
        taken = {stored for parts in self._parts.values() for stored in parts.values()}
        plain = [name for name in self._where if name not in taken and not name.endswith(self._layout.ignored)]
        return [*(name for name in plain if not self._is_empty_bias(name)), *self._parts]

    def _is_empty_bias(self, name: str) -> bool:
        """GPTQ's files have biases of zeros where the model has none."""
        weight = name.removesuffix("bias") + "weight"
        return name not in self._used and weight in self._parts and not self._stored(name).any()

    def shape(self, name: str) -> tuple[int, ...]:
        """Checks the tensors that store a quantized matrix."""
        if name not in self._parts:
            return super().shape(name)
        self._matrix(name)
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return parse_dtype(self.config.dtype) if name in self._parts else super().dtype(name)

    def where(self, name: str) -> str:
        return super().where(next(iter(self._parts[name].values())) if name in self._parts else name)

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        if name not in self._parts:
            return super().tensor(name, dtype, part)
        return self._matrix(name).floats(dtype or torch.float32, part)

    def format(self, name: str) -> Format | None:
        return self._matrix(name).form if name in self._parts else None

    def packed(self, name: str, part: Part | None = None) -> Packed:
        return self._matrix(name).packed(part)

    def _matrix(self, name: str) -> LibraryMatrix:
        if name not in self._matrices:
            names, layout = self._parts[name], self._layout
            stored = StoredParts(
                *(self._shapes[name], name.removesuffix(".weight"), self.where(name), layout.library),
                *(lambda part: self._stored(names[part]), frozenset(names)),
            )
            self._matrices[name] = layout.read(stored, self._settings(name))
        return self._matrices[name]

    def _settings(self, name: str) -> FieldReader:
        """torchao's class of a matrix is in the file's metadata; other libraries' settings are in config.json."""
        if self._layout.library != "torchao":
            return self._read
        file = self._open(self._where[next(iter(self._parts[name].values()))])
        try:
            value = json.loads((file.metadata() or {}).get(name, ""))
        except (ValueError, RecursionError):
            value = None
        return FieldReader(value if isinstance(value, dict) else {}, self.where(name))

    def _stored_parts(self, stems: set[str]) -> dict[str, dict[str, str]]:
        """Names of stored tensors by their matrix and the ends of their names."""
        found: dict[str, dict[str, str]] = {}
        for stored in self._where:
            stem = stored
            while stem := stem.rpartition(".")[0]:
                if stem in stems and (end := stored[len(stem) + 1 :]) in self._layout.suffixes:
                    found.setdefault(stem, {})[end] = stored
        return found

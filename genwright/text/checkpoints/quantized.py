"""The folders that `genwright quantize` writes: a Hugging Face folder whose matrices are packed.

A matrix `x.weight` is stored as the tensors of its format: `x.weight.words`, `x.weight.scales` and so on. The
`quantization_config` of config.json names the format, and the matrices that have another one.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from genwright.errors import UserError
from genwright.quant.formats import Format, parse_format
from genwright.quant.packed import Packed
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.huggingface import HuggingFace
from genwright.text.checkpoints.protocol import narrow, parse_dtype
from genwright.text.config_file import FieldReader

METHOD = "genwright"


class Quantized(HuggingFace):
    """Packed matrices appear under their own name and shape."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        read = FieldReader(self.hf_config, str(folder / "config.json")).table("quantization_config")
        others = read.table("others")
        self._format = _format(read, "format")
        self._others = {name: _format(others, name) for name in others.config}
        shapes = {s.name: s.shape for s in architecture(self.config).weight_map(self.config).tensors(draft=True)}
        # One of its tensors is enough to recognise a packed matrix; `shape` reports those that are missing.
        stems = {name.rpartition(".")[0] for name in self._where}
        self._shapes = {name: shape for name, shape in shapes.items() if name in stems and len(shape) == 2}

    @staticmethod
    def recognises(folder: Path) -> bool:
        return HuggingFace.quant_method(folder) == METHOD

    def names(self) -> Sequence[str]:
        plain = [name for name in self._where if name.rpartition(".")[0] not in self._shapes]
        return [*plain, *self._shapes]

    def shape(self, name: str) -> tuple[int, ...]:
        """Checks that a packed matrix has all tensors of its format."""
        form = self.format(name)
        if form is None:
            return super().shape(name)
        shape = self._shapes[name]
        for part, entry in form.entries(shape).items():
            stored = f"{name}.{part}"
            if stored not in self._where:
                raise UserError(f"{self.where(name)} has no tensor {stored!r}, which the format {form.name} needs.")
            found = (super().shape(stored), super().dtype(stored))
            if found != entry:
                wanted, has = (f"{dtype} {list(size)}".removeprefix("torch.") for size, dtype in (entry, found))
                raise UserError(f"{self.where(stored)} has {stored!r} as {has}; the format {form.name} needs {wanted}.")
        return shape

    def dtype(self, name: str) -> torch.dtype:
        return parse_dtype(self.config.dtype) if name in self._shapes else super().dtype(name)

    def where(self, name: str) -> str:
        parts = (stored for stored in self._where if stored.rpartition(".")[0] == name)
        return super().where(next(parts, name) if name in self._shapes else name)

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        if name not in self._shapes:
            return super().tensor(name, dtype, part)
        return self.dequantized(name, dtype or torch.float32, part)

    def format(self, name: str) -> Format | None:
        return self._others.get(name, self._format) if name in self._shapes else None

    def packed(self, name: str, part: Part | None = None) -> Packed:
        form, shape = self.format(name), self._shapes[name]
        assert form is not None
        stored = {key: self._stored(f"{name}.{key}") for key in form.entries(shape)}
        return narrow(form.assemble(shape, stored), part)


def _format(read: FieldReader, key: str) -> Format:
    try:
        return parse_format(read.text(key, ""))
    except UserError as error:
        raise UserError(f"{read.where}: {error}") from None

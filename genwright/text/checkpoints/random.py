"""`random:NAME[,layers=16][,seed=0]`: a named shape with random weights, the same on every rank, device and tier."""

import zlib
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch

from genwright.errors import UserError
from genwright.rng import extend, key, key_tensor, mix
from genwright.text.architectures.registry import architecture, named_shape, read_config
from genwright.text.architectures.weight_map import Part, Shape
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.config_file import FieldReader
from genwright.text.tokenizer.tokenizer import Tokenizer

_STD = 0.02
_PIECE = 1 << 15  # elements that share a key: few enough for the cache, and for torch not to wake other threads


class RandomWeights(Checkpoint):
    """Values are hash(seed, tensor name, element), drawn when a tensor is asked for."""

    def __init__(self, name: str):
        self.path = name
        shape, *options = name.removeprefix("random:").split(",")
        settings = dict(option.partition("=")[::2] for option in options)
        try:
            self._seed = int(settings.pop("seed", "0"))
            layers = {"num_hidden_layers": int(settings.pop("layers"))} if "layers" in settings else {}
        except ValueError:
            raise UserError(f"{name!r} should give layers and seed as whole numbers.") from None
        if settings:
            raise UserError(f"{name!r} has the option {next(iter(settings))!r}; known are layers and seed.")
        self.hf_config: dict[str, Any] = {**named_shape(shape), **layers}
        self.config = read_config(self.hf_config, name)
        tensors = architecture(self.config).weight_map(self.config).tensors(draft=True)
        self._shapes = {source.name: source.shape for source in tensors}

    def names(self) -> Sequence[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.config.dtype)
        return dtype

    def where(self, name: str) -> str:
        return self.path

    def tensor(
        self,
        name: str,
        dtype: torch.dtype | None = None,
        part: Part | None = None,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """Uniform with the standard deviation of a usual initialisation, norms around one; drawn on the device."""
        shape = self._shapes[name]
        tensor = torch.empty(part.shape(shape) if part else shape, dtype=dtype or self.dtype(name), device=device)
        step, mean = _STD * 12**0.5 / (1 << 24), 1.0 if name.endswith("norm.weight") else 0.0
        prefix = key_tensor([key(self._seed, zlib.crc32(name.encode()))], device)
        # A few pieces of the processor's cache at a time, or enough to fill a GPU.
        many = _PIECE * (1 if tensor.device.type == "cpu" else 1 << 9)
        if part is not None and part.axis == 1:
            targets, drawn = tensor.split(max(1, many // part.length)), _columns(prefix, shape, part, many)
        else:
            start = part.start * prod(shape[1:]) if part else 0
            targets = tensor.view(-1).tensor_split(list(range(many - start % many, tensor.numel(), many)))
            drawn = _elements(prefix, start, start + tensor.numel(), many)
        for target, bits in zip(targets, drawn, strict=True):
            target.copy_((bits >> 8).float().mul_(step).add_(mean + step / 2))  # 24 bits, evenly around the mean
        return tensor

    def tokenizer(self) -> Tokenizer | None:
        return None

    def generation_config(self) -> FieldReader:
        return FieldReader({}, self.path)


def _elements(prefix: torch.Tensor, start: int, end: int, many: int) -> Iterator[torch.Tensor]:
    """Bits of a tensor's elements from `start` to `end`, at most `many` at a time; a piece of them shares a key."""
    first = start // many * many
    keys = extend(prefix, torch.arange(first // _PIECE, -(-end // _PIECE), device=prefix.device))
    counter = mix(torch.arange(_PIECE, dtype=torch.int32, device=prefix.device))
    for some in keys.split(many // _PIECE):
        yield mix(some[:, None] ^ counter).view(-1)[max(start - first, 0) : end - first]
        first += many


def _columns(prefix: torch.Tensor, shape: Shape, part: Part, many: int) -> Iterator[torch.Tensor]:
    """The same bits of some columns of a matrix, some rows at a time."""
    columns = torch.arange(part.start, part.start + part.length, device=prefix.device)
    for rows in torch.arange(shape[0], device=prefix.device).split(max(1, many // part.length)):
        elements = rows[:, None] * shape[1] + columns
        yield mix(extend(prefix, elements // _PIECE) ^ mix((elements % _PIECE).to(torch.int32)))

"""`random:NAME[,layers=16][,seed=0]`: a named shape with random weights, the same on every rank and device."""

import zlib
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch

from genwright.errors import UserError
from genwright.rng import extend, key, key_tensor, mix
from genwright.text.architectures.registry import architecture, named_shape, read_config
from genwright.text.architectures.weight_map import Part, Shape
from genwright.text.checkpoints.protocol import Checkpoint, parse_dtype
from genwright.text.config_file import FieldReader
from genwright.text.tokenizer.tokenizer import Tokenizer

_STD = 0.02
_PIECE = 1 << 15  # elements per key: they fit the cache, and torch does not use several threads for so few


class RandomWeights(Checkpoint):
    """A value is a hash of the seed, the tensor's name and the element's index, computed on request."""

    def __init__(self, name: str):
        self.path = name
        shape, *options = name.removeprefix("random:").split(",")
        settings = dict(option.partition("=")[::2] for option in options)
        try:
            self._seed = int(settings.pop("seed", "0"))
            layers = {"num_hidden_layers": int(settings.pop("layers"))} if "layers" in settings else {}
        except ValueError:
            raise UserError(f"The layers and seed of {name!r} must be whole numbers.") from None
        if settings:
            raise UserError(f"{name!r} has the unknown option {next(iter(settings))!r}; options are layers and seed.")
        self.hf_config: dict[str, Any] = {**named_shape(shape), **layers}
        self.config = read_config(self.hf_config, name)
        tensors = architecture(self.config).weight_map(self.config).tensors(draft=True)
        self._shapes = {source.name: source.shape for source in tensors}

    def names(self) -> Sequence[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        return parse_dtype(self.config.dtype)

    def tensor(
        self, name: str, dtype: torch.dtype | None = None, part: Part | None = None, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """Uniform values computed on the device: around 1 for norms, else around 0."""
        shape = self._shapes[name]
        tensor = torch.empty(part.shape(shape) if part else shape, dtype=dtype or self.dtype(name), device=device)
        step, mean = _STD * 12**0.5 / (1 << 24), 1.0 if name.endswith("norm.weight") else 0.0
        prefix = key_tensor([key(self._seed, zlib.crc32(name.encode()))], device)
        # One piece at a time on a CPU, enough of them to fill a GPU.
        chunk = _PIECE * (1 if tensor.device.type == "cpu" else 1 << 9)
        if part is not None and part.axis == 1:
            targets, hashes = tensor.split(max(1, chunk // part.length)), _hash_columns(prefix, shape, part, chunk)
        else:
            start = part.start * prod(shape[1:]) if part else 0
            targets = tensor.view(-1).tensor_split(list(range(chunk - start % chunk, tensor.numel(), chunk)))
            hashes = _hash_elements(prefix, start, start + tensor.numel(), chunk)
        for target, bits in zip(targets, hashes, strict=True):
            target.copy_((bits >> 8).float().mul_(step).add_(mean + step / 2))  # 24 bits, symmetric around the mean
        return tensor

    def tokenizer(self) -> Tokenizer | None:
        return None

    def generation_config(self) -> FieldReader:
        return FieldReader({}, self.path)


def _hash_elements(prefix: torch.Tensor, start: int, end: int, chunk: int) -> Iterator[torch.Tensor]:
    """Hashes of a tensor's elements from `start` to `end`, at most `chunk` at a time."""
    first = start // chunk * chunk
    keys = extend(prefix, torch.arange(first // _PIECE, -(-end // _PIECE), device=prefix.device))
    counter = mix(torch.arange(_PIECE, dtype=torch.int32, device=prefix.device))
    for some in keys.split(chunk // _PIECE):
        yield mix(some[:, None] ^ counter).view(-1)[max(start - first, 0) : end - first]
        first += chunk


def _hash_columns(prefix: torch.Tensor, shape: Shape, part: Part, chunk: int) -> Iterator[torch.Tensor]:
    """The same hashes for some columns of a matrix, a few rows at a time."""
    columns = torch.arange(part.start, part.start + part.length, device=prefix.device)
    for rows in torch.arange(shape[0], device=prefix.device).split(max(1, chunk // part.length)):
        elements = rows[:, None] * shape[1] + columns
        yield mix(extend(prefix, elements // _PIECE) ^ mix((elements % _PIECE).to(torch.int32)))

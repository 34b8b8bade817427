"""`random:NAME[,layers=16][,seed=0]`: a named shape with random weights, the same on every rank, device and tier."""

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from genwright.errors import UserError
from genwright.rng import extend, key, key_tensor, mix
from genwright.text.architectures.registry import architecture, named_shape, read_config
from genwright.text.checkpoints import Checkpoint
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
        self._shapes = dict(architecture(self.config).weight_map(self.config).tensors(draft=True))

    def names(self) -> Sequence[str]:
        return list(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def dtype(self, name: str) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.config.dtype)
        return dtype

    def where(self, name: str) -> str:
        return self.path

    def tensor(self, name: str, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> torch.Tensor:
        """Uniform with the standard deviation of a usual initialisation, norms around one; drawn on the device."""
        tensor = torch.empty(self._shapes[name], dtype=dtype or self.dtype(name), device=device)
        step, mean = _STD * 12**0.5 / (1 << 24), 1.0 if name.endswith("norm.weight") else 0.0
        numbers = torch.arange(-(-tensor.numel() // _PIECE), device=device)
        prefix = key_tensor([key(self._seed, zlib.crc32(name.encode()))], device)
        keys, counter = extend(prefix, numbers), mix(torch.arange(_PIECE, dtype=torch.int32, device=device))
        # A few pieces of the processor's cache at a time, or enough to fill a GPU.
        many = 1 if tensor.device.type == "cpu" else 1 << 9
        for some, part in zip(keys.split(many), tensor.view(-1).split(many * _PIECE), strict=True):
            bits = mix(some[:, None] ^ counter).view(-1)[: len(part)]
            part.copy_((bits >> 8).float().mul_(step).add_(mean + step / 2))  # 24 bits, evenly around the mean
        return tensor

    def tokenizer(self) -> Tokenizer | None:
        return None

    def generation_config(self) -> FieldReader:
        return FieldReader({}, self.path)

"""The original's generators of noise: `dummy`, and two whose rows depend neither on batch size nor on ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cm import dist_util
from genwright.errors import UserError


class DummyGenerator:
    """torch's global generator."""

    def randn(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.randn(*args, **kwargs)

    def randint(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.randint(*args, **kwargs)

    def randn_like(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.randn_like(*args, **kwargs)


class _RowGenerator:
    """Draws of a rank: every world_size-th row of those of `num_samples` samples, from `done_samples` on."""

    def __init__(self, num_samples: int, seed: int = 0):
        self.rank, self.world_size = 0, 1
        if dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.num_samples, self.seed, self.done_samples = num_samples, seed, 0
        self.set_seed(seed)

    def set_seed(self, seed: int) -> None:
        raise NotImplementedError

    def _draw(self, function: Any, size: tuple[int, ...], rows: Tensor, device: torch.device, **kwargs: Any) -> Tensor:
        raise NotImplementedError

    def _rows(self, count: int) -> Tensor:
        first = self.done_samples + self.rank
        return torch.arange(first, first + self.world_size * count, self.world_size).clamp(0, self.num_samples - 1)

    def randn(self, *size: int, dtype: torch.dtype = torch.float32, device: Any = "cpu") -> Tensor:
        return self._draw(torch.randn, size[1:], self._rows(size[0]), torch.device(device or "cpu"), dtype=dtype)

    def randint(
        self, low: int, high: int, size: tuple[int, ...], dtype: torch.dtype = torch.int64, device: Any = "cpu"
    ) -> Tensor:
        def draw(shape: tuple[int, ...], **kwargs: Any) -> Tensor:
            return torch.randint(low, high, shape, **kwargs)

        return self._draw(draw, size[1:], self._rows(size[0]), torch.device(device or "cpu"), dtype=dtype)

    def randn_like(self, tensor: Tensor) -> Tensor:
        return self.randn(*tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def get_seed(self) -> int:
        return self.seed


class DeterministicGenerator(_RowGenerator):
    """One stream, from which the noise of all samples is drawn."""

    def set_seed(self, seed: int) -> None:
        self.rng_cpu = torch.Generator().manual_seed(seed)
        if torch.cuda.is_available():
            self.rng_cuda = torch.Generator(dist_util.dev()).manual_seed(seed)

    def set_done_samples(self, done_samples: int) -> None:
        self.done_samples = done_samples
        self.set_seed(self.seed)

    def _draw(self, function: Any, size: tuple[int, ...], rows: Tensor, device: torch.device, **kwargs: Any) -> Tensor:
        generator = self.rng_cpu if device.type == "cpu" else self.rng_cuda
        return function((self.num_samples, *size), generator=generator, device=device, **kwargs)[rows]


class DeterministicIndividualGenerator(_RowGenerator):
    """A stream for each sample, seeded i + num_samples * seed."""

    def set_seed(self, seed: int) -> None:
        self._streams: dict[tuple[str, int], torch.Generator] = {}
        self._first_seed = self.num_samples * seed

    def set_done_samples(self, done_samples: int) -> None:
        self.done_samples = done_samples

    def _stream(self, device: torch.device, row: int) -> torch.Generator:
        key = device.type, row
        if key not in self._streams:
            self._streams[key] = torch.Generator(device).manual_seed(self._first_seed + row)
        return self._streams[key]

    def _draw(self, function: Any, size: tuple[int, ...], rows: Tensor, device: torch.device, **kwargs: Any) -> Tensor:
        streams = [self._stream(device, row) for row in rows.tolist()]
        return torch.cat([function((1, *size), generator=each, device=device, **kwargs) for each in streams])


Generator = DummyGenerator | DeterministicGenerator | DeterministicIndividualGenerator


def get_generator(generator: str, num_samples: int = 0, seed: int = 0) -> Generator:
    """A generator by name; `dummy` has no seed."""
    if generator == "dummy":
        return DummyGenerator()
    if generator == "determ":
        return DeterministicGenerator(num_samples, seed)
    if generator == "determ-indiv":
        return DeterministicIndividualGenerator(num_samples, seed)
    raise UserError(f"There is no generator {generator!r}; there are dummy, determ and determ-indiv.")

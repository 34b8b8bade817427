"""One random stream per sample: image i depends on hash(seed, i) only. Also the original's generators.

The hash is Philox 4x32-10 (Salmon et al. 2011): its key is the seed; its counter is element, draw, image and purpose.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from genwright.errors import UserError

NOISE, LABEL, CLUSTER = 0, 1, 2  # purposes
_WORD = 0xFFFFFFFF


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four random 32-bit words for four counter words; int64 tensors that broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # An int64 product wraps around, but its upper word, masked, is that of the unsigned product.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32 & _WORD) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32 & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return c0, c1, c2, c3


def hash_words(seed: int, indices: Tensor, draw: int, purpose: int, count: int) -> Tensor:
    """`count` random 32-bit words for each image of `indices` [N]: [N, count] int64."""
    blocks = torch.arange(-(-count // 4), device=indices.device)[None, :]
    image = indices[:, None]
    counter = (blocks, torch.full_like(blocks, draw), image & _WORD, torch.full_like(blocks, purpose))
    words = philox(counter, (seed & _WORD, seed >> 32 & _WORD))
    return torch.stack(words, dim=-1).flatten(1)[:, :count]


def hash_normal(seed: int, indices: Tensor, draw: int, shape: tuple[int, ...]) -> Tensor:
    """The draw-th standard normals of each image: [N, *shape] float32, by Box and Muller in float64."""
    count = math.prod(shape)
    uniform = (hash_words(seed, indices, draw, NOISE, count + count % 2).double() + 0.5) / 2**32
    radius, angle = (-2 * uniform[:, 0::2].log()).sqrt(), 2 * math.pi * uniform[:, 1::2]
    normals = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1).flatten(1)[:, :count]
    return normals.float().view(-1, *shape)


def hash_labels(seed: int, indices: Tensor, num_classes: int) -> Tensor:
    """Each image's class label: [N] int64 in [0, num_classes)."""
    return hash_words(seed, indices, 0, LABEL, 1)[:, 0] * num_classes >> 32


class Noise:
    """The noise of a batch: every call is the next draw; `skip` leaves one out, as generators with a state must."""

    def __init__(self, draw: Callable[[int], Tensor], stateful: bool = False):
        self._draw, self._stateful, self._drawn = draw, stateful, 0

    def __call__(self) -> Tensor:
        self._drawn += 1
        return self._draw(self._drawn - 1)

    def skip(self) -> None:
        self._drawn += 1
        if self._stateful:
            self._draw(self._drawn - 1)


class Determ:
    """The original's `determ`: one stream for all `num_samples` images, of which each rank takes every world-th row."""

    def __init__(self, num_samples: int, seed: int, device: torch.device, rank: int = 0, world: int = 1):
        self.num_samples, self.rank, self.world, self.device = num_samples, rank, world, device
        self.rng = torch.Generator(device).manual_seed(seed)

    def randn(self, *size: int) -> Tensor:
        rows = _rows(size[0], self.num_samples, self.rank, self.world)
        return torch.randn(self.num_samples, *size[1:], generator=self.rng, device=self.device)[rows]


class DetermIndiv:
    """The original's `determ-indiv`: row i has a stream of its own, seeded i + num_samples * seed."""

    def __init__(self, num_samples: int, seed: int, device: torch.device, rank: int = 0, world: int = 1):
        if abs(seed) >= 2**62 // num_samples:
            raise UserError(f"The seed of generator determ-indiv must be below 2^62 / num_samples, not {seed}.")
        self.num_samples, self.seed, self.rank, self.world, self.device = num_samples, seed, rank, world, device
        self.rngs: dict[int, torch.Generator] = {}

    def _rng(self, row: int) -> torch.Generator:
        if row not in self.rngs:
            self.rngs[row] = torch.Generator(self.device).manual_seed(row + self.num_samples * self.seed)
        return self.rngs[row]

    def randn(self, *size: int) -> Tensor:
        rows = _rows(size[0], self.num_samples, self.rank, self.world).tolist()
        return torch.cat([torch.randn(1, *size[1:], generator=self._rng(i), device=self.device) for i in rows])


class Dummy:
    """The original's `dummy`: torch's global stream, not seeded."""

    def __init__(self, num_samples: int, seed: int, device: torch.device, rank: int = 0, world: int = 1):
        self.device = device

    def randn(self, *size: int) -> Tensor:
        return torch.randn(*size, device=self.device)


GENERATORS = {"determ": Determ, "determ-indiv": DetermIndiv, "dummy": Dummy}


def _rows(count: int, num_samples: int, rank: int, world: int) -> Tensor:
    return torch.arange(rank, rank + world * count, world).clamp(0, num_samples - 1)

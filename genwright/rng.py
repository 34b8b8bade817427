"""A counter hash: noise that is a function of its coordinates, the same integers on every device and rank."""

from collections.abc import Sequence

import torch


def mix(x: torch.Tensor) -> torch.Tensor:
    """Scramble int32 values in place, one to one (Wellons' lowbias32: two multiplications, three xor-shifts)."""
    x ^= (x >> 16) & 0xFFFF  # int32 shifts drag the sign along; the masks cut it off
    x *= 0x7FEB352D
    x ^= (x >> 15) & 0x1FFFF
    x *= 0x846CA68B - (1 << 32)
    x ^= (x >> 16) & 0xFFFF
    return x


def uniform(x: torch.Tensor) -> torch.Tensor:
    """Hashed int32 values to float32 in (0, 1), on a grid of 2^-23 without its ends (one of 2^-24 would round to 1)."""
    return ((x >> 9) & 0x7FFFFF).float().add_(0.5).mul_(2.0**-23)


def key(*parts: int) -> int:
    """One 32-bit key from whole numbers of any size, on the host."""
    state = 0x9E3779B9
    for part in parts:
        while True:
            state = _mix_int(state ^ (part & 0xFFFFFFFF))
            part >>= 32
            if part in (0, -1):
                break
    return state


def key_tensor(keys: Sequence[int], device: torch.device | str = "cpu") -> torch.Tensor:
    """Keys as the int32 values that `mix` works on."""
    return torch.tensor(keys, dtype=torch.int64, device=device).to(torch.int32)


def extend(keys: torch.Tensor, part: torch.Tensor | int) -> torch.Tensor:
    """key(..., part) from the int32 key(...), elementwise on its device; parts are from 0 to 2^31 - 1."""
    return mix(keys ^ (part.to(torch.int32) if isinstance(part, torch.Tensor) else part))


def step_keys(prefix: torch.Tensor, positions: torch.Tensor, purpose: int) -> torch.Tensor:
    """key(seed, sample, position, purpose) of each row; `prefix` is key(seed, sample), which a request keeps."""
    return extend(extend(prefix, positions), purpose)


def _mix_int(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)

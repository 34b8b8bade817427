"""Counter-based random numbers: a hash of the coordinates, so that every device and rank gets the same integers."""

from collections.abc import Sequence

import torch


def mix(x: torch.Tensor) -> torch.Tensor:
    """Hash int32 values in place, one to one (Wellons' lowbias32)."""
    x ^= (x >> 16) & 0xFFFF  # int32 shifts extend the sign; the masks remove it
    x *= 0x7FEB352D
    x ^= (x >> 15) & 0x1FFFF
    x *= 0x846CA68B - (1 << 32)
    x ^= (x >> 16) & 0xFFFF
    return x


def uniform(x: torch.Tensor) -> torch.Tensor:
    """Hashed int32 values to float32 in (0, 1), in steps of 2^-23 (with 2^-24, the largest would round to 1)."""
    return ((x >> 9) & 0x7FFFFF).float().add_(0.5).mul_(2.0**-23)


def key(*parts: int) -> int:
    """Hash integers of any size to one 32-bit key, on the host."""
    state = 0x9E3779B9
    for part in parts:
        while True:
            state = _mix_int(state ^ (part & 0xFFFFFFFF))
            part >>= 32
            if part in (0, -1):
                break
    return state


def key_tensor(keys: Sequence[int], device: torch.device | str = "cpu") -> torch.Tensor:
    """Keys as a tensor of int32 values for `mix`."""
    return torch.tensor(keys, dtype=torch.int64, device=device).to(torch.int32)


def extend(keys: torch.Tensor, part: torch.Tensor | int) -> torch.Tensor:
    """key(..., part) from int32 key(...), elementwise; parts must be between 0 and 2^31 - 1."""
    return mix(keys ^ (part.to(torch.int32) if isinstance(part, torch.Tensor) else part))


def _mix_int(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)

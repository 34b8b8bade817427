"""The limits of a device, measured: bytes read from memory and operations per second."""

from dataclasses import dataclass

import torch

from genwright.placement.rates import matmul_rate, read_rate


@dataclass(frozen=True)
class Roofline:
    """The two limits of a device."""

    read: float  # bytes per second, from memory
    matmul: float  # floating-point operations per second, in the measured data type


def measure_roofline(device: torch.device, dtype: torch.dtype) -> Roofline:
    """Both limits; the best of several rounds and ways, because disturbances only slow a measurement."""
    return Roofline(read_rate(device), matmul_rate(device, dtype))

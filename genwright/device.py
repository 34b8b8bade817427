"""Which device computes, and how much memory it has."""

import resource

import psutil
import torch

from genwright.errors import UserError


def pick_device(name: str) -> torch.device:
    """The device of that name, of GPUs with its number; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"There is no device {name!r}; choose auto, cpu or cuda.") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"Genwright computes on cpu or cuda, not on {name!r}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("There is no CUDA device here; choose cpu.")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise UserError(f"There is no device {name!r}: the last is cuda:{torch.cuda.device_count() - 1}.")
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that can be taken on a device, some left for others."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.9)
    return int(psutil.virtual_memory().available * 0.8)


def peak_memory(device: torch.device) -> int:
    """The peak in bytes of the GPU's memory, or of this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

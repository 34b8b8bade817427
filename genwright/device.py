"""Choose the device, measure its memory, and copy tensors to it."""

import resource

import psutil
import torch

from genwright.errors import UserError


def pick_device(name: str) -> torch.device:
    """The device of this name, with an index if it is a GPU; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"Device {name!r} is unknown; choose auto, cpu or cuda.") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise UserError(f"Device {name!r} is not supported; choose auto, cpu or cuda.")
    if not torch.cuda.is_available():
        raise UserError("No CUDA device was found; choose cpu.")
    if device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if device.index >= torch.cuda.device_count():
        raise UserError(f"Device {name!r} does not exist; the last one is cuda:{torch.cuda.device_count() - 1}.")
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that may be used on a device, leaving some for other processes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.9)
    return int(psutil.virtual_memory().available * 0.8)


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor in CPU memory to a device, without waiting for a GPU."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def peak_memory(device: torch.device) -> int:
    """The peak in bytes of the GPU's memory, or of this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

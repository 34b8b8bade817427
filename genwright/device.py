"""Choose the device, measure its memory, and copy tensors to and from it."""

import resource
from functools import cache
from typing import Any

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
    """Copy a tensor in CPU memory to a device, without waiting for a GPU.

    A GPU copies it while it computes what was launched before: between two kernels, a copy costs 6 us of the stream.
    """
    if device.type == "cpu":
        return tensor
    current, copies = torch.cuda.current_stream(device), _copy_stream(device, "to the device")
    with torch.cuda.stream(copies):
        copy = (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)
    current.wait_stream(copies)
    copy.record_stream(current)
    return copy


class Download:
    """Copies of tensors on their way to the host, which later work of their stream does not wait for."""

    def __init__(self, *tensors: torch.Tensor | None):
        on_gpu = [tensor for tensor in tensors if tensor is not None and tensor.is_cuda]
        self._event = None
        if not on_gpu:
            self._host = list(tensors)
            return
        copies = _copy_stream(on_gpu[0].device, "to the host")
        copies.wait_stream(torch.cuda.current_stream(copies.device))
        with torch.cuda.stream(copies):
            self._host = [None if tensor is None else _to_host(tensor) for tensor in tensors]
            self._event = torch.cuda.Event()
            self._event.record()
        for tensor in on_gpu:
            tensor.record_stream(copies)

    def wait(self) -> list[list[Any]]:
        """The tensors as lists; an empty list for None."""
        if self._event is not None:
            self._event.synchronize()
        return [[] if each is None else each.tolist() for each in self._host]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


@cache
def _copy_stream(device: torch.device, direction: str) -> torch.cuda.Stream:
    """One for each direction, because a copy to the host waits for a step, and the next step's inputs must not."""
    return torch.cuda.Stream(device)


def peak_memory(device: torch.device) -> int:
    """The peak in bytes of the GPU's memory, or of this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

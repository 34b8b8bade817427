"""Calls of C++ kernels, made at once or recorded so that a whole step's calls can be made again by one."""

import ctypes
from functools import cache
from typing import Any

import torch

from genwright.kernels.cpu.build import load_library


class Progress(ctypes.Structure):
    """`Progress` of calls.h, with which the arguments of every kernel begin."""

    _fields_ = (("taken", ctypes.c_int64), ("finished", ctypes.c_int64))


class Call(ctypes.Structure):
    """`Call` of calls.cpp: a function of a kernel, its arguments, and how many units of work it has."""

    _fields_ = (("part", ctypes.c_void_p), ("arguments", ctypes.c_void_p), ("units", ctypes.c_int64))


class Recording:
    """Kernel calls in their order, with the tensors that they read and write, which stay where they are."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._kept: list[Any] = []
        self._array: ctypes.Array[Call] | None = None

    def record(self, function: int, arguments: ctypes.Structure, units: int, *tensors: torch.Tensor | None) -> None:
        self._calls.append(Call(function, ctypes.addressof(arguments), units))
        self._kept += (arguments, *tensors)

    def replay(self) -> None:
        """Make all calls; each starts when the one before it has finished."""
        if self._array is None:
            self._array = (Call * len(self._calls))(*self._calls)
        _run(self._array, len(self._calls))


def make_call(
    function: int, arguments: ctypes.Structure, units: int, recording: Recording | None, *tensors: torch.Tensor | None
) -> None:
    """Call a kernel's function on all threads, and record the call with the tensors that it reads and writes."""
    _run(Call(function, ctypes.addressof(arguments), units), 1)
    if recording is not None:
        recording.record(function, arguments, units, *tensors)


def address(library: ctypes.CDLL, name: str) -> int:
    """The address of a library's function."""
    found = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert found is not None
    return found


def _run(calls: Call | ctypes.Array[Call], count: int) -> None:
    library = runner()
    assert library is not None
    library.run_calls(ctypes.byref(calls), count, torch.get_num_threads())


@cache
def runner() -> ctypes.CDLL | None:
    """calls.cpp; None if it cannot be compiled."""
    library = load_library("calls")
    if library is not None:
        library.run_calls.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    return library

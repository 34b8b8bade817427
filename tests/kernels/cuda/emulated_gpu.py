"""An emulated Hopper GPU for the CUDA kernels: NVRTC compiles them to PTX, and the C++ in emulator/ runs that.

It takes the place of CUDA's driver, so everything up to the launch is the package's own code. The arguments of a kernel
are CPU tensors, and it may access nothing else. Warps take turns in a random order, threads of a warp run ahead of the
others, and copies to shared memory arrive late. A kernel that may overlap the one before it (programmatic dependent
launch) sees nothing of what that one writes until it has waited. So a missing barrier or wait gives a wrong result.

What this cannot show: time, registers, what the compiler makes of PTX, fences between memories that the GPU sees in
different orders (also those before TMA), and sums of wgmma that are read before a wait.
"""

import ctypes
import hashlib
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import pytest
import torch
from kernels.products import SMALL

from genwright.home import lock
from genwright.kernels.cuda import nvrtc

SOURCES = Path(__file__).with_name("emulator")
MULTIPROCESSORS = 12  # the most blocks that run at the same time
MOST_STEPS = 1 << (28 if SMALL else 31)  # instructions of a launch, before it counts as one that never ends
PROPERTIES = SimpleNamespace(multi_processor_count=MULTIPROCESSORS, shared_memory_per_multiprocessor=228 << 10)


def emulate(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let kernels run on CPU tensors; the emulator and the PTX are kept in `folder`."""
    library, to_argument, storages = _driver(folder), nvrtc._as_argument, set[int]()
    library.emulator_configure(MULTIPROCESSORS, ctypes.c_uint64(MOST_STEPS))

    def forget(storage: int, first: int, size: int) -> None:
        storages.discard(storage)
        library.emulator_forget(ctypes.c_uint64(first), ctypes.c_uint64(size))

    def as_argument(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.numel():
            last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
            size = (last + 1) * value.itemsize
            library.emulator_add_memory(ctypes.c_uint64(value.data_ptr()), ctypes.c_uint64(size))
            storage = value.untyped_storage()
            if storage._cdata not in storages:
                storages.add(storage._cdata)
                finalize(storage, forget, storage._cdata, storage.data_ptr(), storage.nbytes()).atexit = False
        return to_argument(value)

    patch.setattr(nvrtc, "_as_argument", as_argument)
    # None is kept, because the emulator takes from a map what the next kernel may access.
    patch.setattr(nvrtc, "_encoded", nvrtc._encoded.__wrapped__)
    patch.setattr(nvrtc, "_driver", lambda: library)
    patch.setattr(nvrtc, "_nvrtc", _PtxCompiler)
    patch.setattr(nvrtc, "kernel_file", lambda name: folder / name)
    patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    patch.setattr(torch.cuda, "get_device_properties", lambda device=None: PROPERTIES)
    patch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=0))


class _PtxCompiler:
    """NVRTC, which gives PTX where it is asked for machine code."""

    def nvrtcCompileProgram(self, program: Any, count: int, options: Sequence[bytes]) -> int:
        virtual = (option.replace(b"=sm_", b"=compute_") for option in options)
        return compiler().nvrtcCompileProgram(program, count, (ctypes.c_char_p * count)(*virtual))

    def __getattr__(self, name: str) -> Any:
        return getattr(compiler(), name.replace("CUBIN", "PTX"))


@cache
def compiler() -> ctypes.CDLL | None:
    """NVRTC from NVIDIA's wheel; it finds its second library only if that is already loaded."""
    found = find_spec("nvidia")
    folders = map(Path, (found and found.submodule_search_locations) or ())
    versions = [path for folder in folders for path in folder.glob("*/lib/libnvrtc.so.*")]
    if not versions:
        return None
    newest = max(versions, key=lambda path: int(path.suffix[1:]))
    for second in newest.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(second))
    return ctypes.CDLL(str(newest))


@cache
def _driver(folder: Path) -> ctypes.CDLL:
    sources = sorted(SOURCES.iterdir())
    command = ["c++", "-std=c++17", "-O2", "-fwrapv", "-fPIC", "-shared"]
    digest = hashlib.sha256(
        b"\0".join([*map(str.encode, command), *(path.read_bytes() for path in sources)])
    ).hexdigest()
    target = folder / f"libemulator-{digest[:16]}.so"
    with lock(folder / "libemulator.lock"):  # other processes run tests too
        if not target.exists():
            part = target.with_suffix(".part")
            subprocess.run([*command, "-o", part, *(path for path in sources if path.suffix == ".cpp")], check=True)
            part.rename(target)
    return ctypes.CDLL(str(target))

"""A Hopper GPU that is not there, for processes without Triton's interpreter: it counts launches, and does nothing."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


class AbsentGpu:
    """A driver of Triton; its launchers count their calls."""

    def __init__(self) -> None:
        from triton.backends.compiler import GPUTarget

        self.launchers = self.launches = 0
        self.get_current_device, self.get_current_stream = lambda: 0, lambda device: 0
        self.get_current_target = lambda: GPUTarget("cuda", 90, 32)
        loaded, properties = (1, 1, 32, 0, 1024), {"max_shared_mem": 227 << 10}
        self.utils = SimpleNamespace(load_binary=lambda *_: loaded, get_device_properties=lambda device: properties)

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        self.launchers += 1
        return self.launch

    def launch(self, *_: object, **__: object) -> None:
        self.launches += 1


def use_absent_gpu() -> AbsentGpu:
    """Make it the GPU of this process, for Triton and for what asks PyTorch; tensors stay on the CPU."""
    from triton.runtime.driver import driver

    gpu = AbsentGpu()
    driver.set_active(gpu)
    sizes = SimpleNamespace(multi_processor_count=132, shared_memory_per_multiprocessor=228 << 10)
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_properties = lambda device=None: sizes
    stream = SimpleNamespace(cuda_stream=0, wait_event=lambda event: None)
    torch.cuda.Stream = torch.cuda.current_stream = lambda device=None: stream  # type: ignore[misc, assignment]
    torch.cuda.Event = lambda: SimpleNamespace(record=lambda stream: None)  # type: ignore[misc, assignment]
    torch.cuda.stream = lambda stream: nullcontext()  # type: ignore[assignment]
    torch.cuda.is_current_stream_capturing = lambda: False
    return gpu


class Compilations:
    """Counts what is compiled by NVRTC and by Triton, and in which threads; neither compiles anything."""

    def __init__(self, gpu: AbsentGpu):
        import triton.compiler

        from genwright.kernels.cuda import nvrtc

        self.count, self.threads = 0, set[str]()
        nvrtc._compile, nvrtc.Kernel = self.compile, lambda code, name: gpu.launch
        nvrtc.keep = lambda *_: None
        triton.compiler.compile = self.compile
        self.launch = gpu.launch

    def compile(self, source: Any, *_: object, **__: object) -> Any:
        self.count += 1
        self.threads.add(threading.current_thread().name.partition("_")[0])
        parts = {"launch_metadata": lambda *_: None, "function": 1, "packed_metadata": (), "metadata": None}
        return b"code" if isinstance(source, str) else SimpleNamespace(src=source, run=self.launch, **parts)

    def take(self) -> int:
        count, self.count = self.count, 0
        return count


def run_without_interpreter(script: str, argument: str, folder: Path) -> None:
    """Run a test's file as a script in a process whose caches are empty; it must succeed."""
    own = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder / "triton"), "GENWRIGHT_HOME": str(folder)}
    environment = {**os.environ, **own, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script, argument]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr

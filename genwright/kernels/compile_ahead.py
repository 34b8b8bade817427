"""Compile the kernels of some work at the same time in threads, instead of one by one when each is first launched."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode


class KernelCompiler:
    """Threads that compile kernels. A `with` block waits for them at its end; without one they end with this object.

    A kernel that cannot be compiled here is compiled again when it is launched, and only then raises.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="genwright-compile")
        self._keys: set[Hashable] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._threads.shutdown(cancel_futures=error is not None)

    def dry_run(self, work: Callable[[], object]) -> None:
        """Run `work` without launching our kernels, and start to compile those that it would launch.

        Nothing may depend on the values that it computes, and the host must not wait for them.
        """
        with suppress(Exception), _compiling_by(self), _ZeroedMemory():
            work()

    def submit(self, key: Hashable, compile_kernel: Callable[[], object]) -> None:
        """Compile a kernel, once for each key."""
        if key not in self._keys:
            self._keys.add(key)
            self._threads.submit(compile_kernel)


_compiler: ContextVar[KernelCompiler | None] = ContextVar("compiler", default=None)


def dry_run_compiler() -> KernelCompiler | None:
    """The compiler that gets this thread's kernels in place of a launch; None outside a dry run."""
    return _compiler.get()


@contextmanager
def launching() -> Iterator[None]:
    """Launch kernels also within a dry run, for example to time them."""
    with _compiling_by(None):
        yield


@contextmanager
def _compiling_by(compiler: KernelCompiler | None) -> Iterator[None]:
    before = _compiler.set(compiler)
    try:
        yield
    finally:
        _compiler.reset(before)


_UNINITIALISED = (torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty)


class _ZeroedMemory(TorchFunctionMode):
    """Zeros where a kernel would write, because PyTorch's operations may use it as indices."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.zero_() if func in _UNINITIALISED else result

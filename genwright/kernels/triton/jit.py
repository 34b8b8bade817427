"""`jit`: as Triton's, but a dry run compiles the kernels in threads and does not launch them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import triton
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from genwright.kernels.compile_ahead import dry_run_compiler


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A decorator with the options of `triton.jit`."""
    if function is None:
        return partial(jit, **options)
    return triton.jit(function, **options) if knobs.runtime.interpret else _Kernel(function, **options)


class _Kernel(JITFunction[Any]):
    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return super().run(*args, grid=grid, warmup=warmup or dry_run_compiler() is not None, **kwargs)

    def _do_compile(self, key: Any, *settings: Any) -> Any:
        # Triton calls this for a kernel that is not in memory, and launches nothing if the result is None.
        compiler = dry_run_compiler()
        if compiler is None:
            return super()._do_compile(key, *settings)
        compiler.submit((self, key), partial(self._compile, key, *settings))
        return None

    def _compile(self, *settings: Any) -> None:
        kernel = super()._do_compile(*settings)
        # The C code that launches it is compiled too; Triton would do so at the first launch, and finds it on disk now.
        driver.active.launcher_cls(kernel.src, kernel.metadata)

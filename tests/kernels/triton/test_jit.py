"""Our `jit`: a dry run compiles each kernel once and launches none, and what fails raises at the launch."""

import pytest
import torch
from absent_gpu import run_without_interpreter, use_absent_gpu

from genwright.kernels.compile_ahead import KernelCompiler
from genwright.kernels.triton.elementwise import rms_norm, silu_mul


def test_jit(tmp_path):
    run_without_interpreter(__file__, "", tmp_path)


def main() -> None:
    gpu, weight = use_absent_gpu(), torch.ones(64)

    def work():
        for rows in (1, 3):  # one binary for both
            rms_norm(torch.empty(rows, 64), weight, 1e-5)
        silu_mul(torch.empty(2, 128))

    def fail():
        rms_norm(torch.empty(1, 64), weight, "text")

    with KernelCompiler() as compiler:
        compiler.dry_run(work)
    assert (gpu.launchers, gpu.launches) == (2, 0)
    with KernelCompiler() as compiler:
        compiler.dry_run(work)  # now they are in memory, and are not launched either
    assert (gpu.launchers, gpu.launches) == (2, 0)
    with KernelCompiler() as compiler:
        compiler.dry_run(fail)
    with pytest.raises(TypeError):
        fail()
    assert gpu.launches == 0
    work()
    assert (gpu.launchers, gpu.launches) == (4, 3)  # the launchers' C code is on disk, but each is loaded


if __name__ == "__main__":
    main()

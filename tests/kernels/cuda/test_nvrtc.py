"""Programs are compiled once, whoever asks for them, and again after a failure; dry runs compile and launch nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from genwright.kernels.compile_ahead import KernelCompiler
from genwright.kernels.cuda import nvrtc
from genwright.kernels.cuda.nvrtc import Program, compiled_kernel

THREADS = 8


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The options of each compilation; NVRTC is replaced, and the cache folder is empty."""
    calls = []

    def compile_source(source, headers, options):
        assert "__global__" in source and "types.cuh" in headers
        calls.append(options)
        return repr(options).encode()

    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_compile", compile_source)
    monkeypatch.setattr(nvrtc, "_codes", {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return calls


def program(**defines: int) -> Program:
    return Program.of("gemv", (9, 0), defines)


def test_threads_share_one_compilation(compiled, monkeypatch):
    meet, once = threading.Barrier(THREADS, timeout=60), nvrtc._compile
    monkeypatch.setattr(nvrtc, "_compile", lambda *args: (threading.Event().wait(0.1), once(*args))[1])

    def ask(_):
        meet.wait()
        return program(ROWS=4).code()

    with ThreadPoolExecutor(THREADS) as threads:
        codes = set(threads.map(ask, range(THREADS)))
    assert len(codes) == len(compiled) == 1


def test_code_is_kept_on_disk(compiled, monkeypatch):
    codes = [program(ROWS=rows).code() for rows in (2, 4)]
    monkeypatch.setattr(nvrtc, "_codes", {})  # another process
    assert codes == [program(ROWS=rows).code() for rows in (2, 4)] and codes[0] != codes[1]
    assert len(compiled) == 2
    assert program(ROWS=2).compile() == codes[0] and len(compiled) == 3  # for a file that is damaged


def test_a_failure_reaches_all_that_wait_and_is_not_remembered(compiled, monkeypatch):
    def fail(*_):
        raise RuntimeError("NVRTC failed")

    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "_compile", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="NVRTC failed"):
                program().code()
    assert program().code() and len(compiled) == 1


def test_a_dry_run_compiles_and_does_not_launch(compiled):
    def work():
        for rows in (1, 2, 1):
            compiled_kernel(0, "gemv", ROWS=rows)((1, 1, 1), 32, (), 0, dependent=True)

    with KernelCompiler() as compiler:
        compiler.dry_run(work)
    assert {options[-1] for options in compiled} == {"-DROWS=1", "-DROWS=2"} and len(compiled) == 2
    with KernelCompiler() as compiler:
        compiler.dry_run(work)
    assert len(compiled) == 2

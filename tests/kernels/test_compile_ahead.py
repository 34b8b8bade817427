"""Dry runs: what they compile, what they do not launch, and that nothing which fails in one is seen outside."""

import os
import threading

import pytest
import torch

from genwright.kernels.compile_ahead import KernelCompiler, dry_run_compiler, launching


def compile_together(work):
    with KernelCompiler() as compiler:
        compiler.dry_run(work)


def test_a_key_is_compiled_once_and_awaited():
    compiled = []

    def work():
        for key in "abab":
            dry_run_compiler().submit(key, lambda key=key: compiled.append((key, threading.current_thread())))

    compile_together(work)
    assert sorted(key for key, _ in compiled) == ["a", "b"]
    assert all(thread is not threading.current_thread() and not thread.is_alive() for _, thread in compiled)


def test_kernels_are_compiled_at_the_same_time():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor has one thread")
    meet = threading.Barrier(2, timeout=60)
    met = []
    compile_together(lambda: [dry_run_compiler().submit(key, lambda: met.append(meet.wait())) for key in range(2)])
    assert sorted(met) == [0, 1]


def test_failures_are_silent():
    def fail():
        raise RuntimeError("no compiler")

    def work():
        dry_run_compiler().submit("kernel", fail)
        raise ValueError("no memory")

    compile_together(work)
    assert dry_run_compiler() is None


def test_an_interrupt_is_not_silent():
    def work():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_together(work)
    assert dry_run_compiler() is None


def test_only_the_thread_of_a_dry_run_is_in_one():
    seen = []

    def work():
        thread = threading.Thread(target=lambda: seen.append(dry_run_compiler()))
        thread.start()
        thread.join()
        with launching():
            seen.append(dry_run_compiler())
        seen.append(dry_run_compiler())

    with KernelCompiler() as compiler:
        compiler.dry_run(work)
    assert seen == [None, None, compiler]


def test_what_no_kernel_writes_is_zero():
    made = []

    def work():
        x = torch.empty(1 << 20, dtype=torch.int64)
        made.extend([x, x.new_empty(7, 3), torch.empty_like(x), torch.empty_strided((4, 2), (2, 1)), torch.ones(2)])

    compile_together(work)
    *empty, ones = made
    assert len(empty) == 4 and not any(tensor.any() for tensor in empty) and ones.all()

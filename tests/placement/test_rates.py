"""Limits of this machine: what two ways of measuring agree on."""

import numpy as np
import pytest
import torch

from genwright.placement import rates


def test_memory_and_products_against_numpy(monkeypatch):
    monkeypatch.setitem(rates.BUFFER, "cpu", 1 << 28)
    monkeypatch.setitem(rates.SIDE, "cpu", 512)
    cpu = torch.device("cpu")
    values, side = np.ones(1 << 26, np.float32), np.ones((512, 512), np.float32)
    # Rates of a busy machine scatter, so these bounds are wide: they catch a wrong unit or a forgotten factor.
    read = values.nbytes / rates.fastest(values.sum, cpu)
    assert 0.1 * read < rates.read_rate(cpu) < 20 * read
    product = 2 * 512**3 / rates.fastest(lambda: side @ side, cpu)
    assert 0.1 * product < rates.matmul_rate(cpu, torch.float32) < 20 * product


def test_copies_and_calls_have_the_right_unit():
    cpu = torch.device("cpu")
    source, target = np.ones(1 << 24, np.uint8), np.ones(1 << 24, np.uint8)
    copy = source.nbytes / rates.fastest(lambda: np.copyto(target, source), cpu)
    assert 0.05 * copy < rates.copy_rate(1 << 24, cpu, cpu, pinned=False) < 20 * copy
    for dtype in (torch.float32, torch.float16):  # the C++ kernel, and PyTorch
        assert 1e6 < rates.attention_rate(dtype) < 1e12
    assert 1e-8 < rates.call_seconds(cpu) < 1e-3


@pytest.mark.gpu
def test_a_pinned_copy_is_no_slower_than_a_pageable_one():
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    for ends in ((cpu, gpu), (gpu, cpu)):
        assert rates.copy_rate(1 << 28, *ends, pinned=True) > 0.9 * rates.copy_rate(1 << 28, *ends, pinned=False)

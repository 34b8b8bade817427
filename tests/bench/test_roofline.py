"""Limits of this machine: what two ways of measuring agree on."""

import numpy as np
import torch

from genwright.bench import roofline


def test_memory_and_products_against_numpy(monkeypatch):
    monkeypatch.setitem(roofline.BUFFER, "cpu", 1 << 28)
    monkeypatch.setitem(roofline.SIDE, "cpu", 512)
    cpu = torch.device("cpu")
    values, side = np.ones(1 << 26, np.float32), np.ones((512, 512), np.float32)
    # Rates of a busy machine scatter, so these bounds are wide: they catch a wrong unit or a forgotten factor.
    read = values.nbytes / roofline.fastest(values.sum, cpu)
    assert 0.1 * read < roofline.read_rate(cpu) < 20 * read
    product = 2 * 512**3 / roofline.fastest(lambda: side @ side, cpu)
    assert 0.1 * product < roofline.matmul_rate(cpu, torch.float32) < 10 * product

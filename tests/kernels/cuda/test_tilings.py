"""Tilings on a GPU that is not in the table: those that fit are timed once, and the fastest is saved."""

import json

import pytest
import torch

from genwright.kernels.cuda import tilings
from genwright.kernels.cuda.fused_linear import operand
from genwright.kernels.cuda.tilings import Tiling, tiling
from genwright.quant.formats import parse_format


@pytest.fixture
def other_gpu(monkeypatch, tmp_path) -> list[Tiling]:
    """The tilings that were timed; each counts as faster than the one before."""
    timed: list[Tiling] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Other")
    monkeypatch.setattr(tilings, "_milliseconds", lambda weight, x, gate, cut: timed.append(cut) or -len(timed))
    monkeypatch.setattr(tilings, "_path", lambda name: tmp_path / name)
    tilings._table.cache_clear()
    yield timed
    tilings._table.cache_clear()


def weights(name: str):
    return operand(parse_format(name).quantize(torch.randn(128, 256)))


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_only_kernels_that_can_read_the_weight_are_timed(name, other_gpu):
    weight, x = weights(name), torch.zeros(3, 256)
    tiling(weight, x[:1], gate=False)
    assert {cut.kernel for cut in other_gpu} == {"gemv", "mma"}
    other_gpu.clear()
    assert tiling(weight, x[:1], gate=False, stack=True).kernel == "gemv"
    assert {cut.kernel for cut in other_gpu} == {"gemv"}
    other_gpu.clear()
    assert tiling(weight, x, gate=False).kernel == "mma"
    assert {cut.kernel for cut in other_gpu} == {"mma"}
    assert tiling(operand(torch.zeros(8, 64)), torch.zeros(2, 64), gate=False) is None


def test_the_fastest_is_saved(other_gpu, tmp_path):
    weight, x = weights("int8"), torch.zeros(1, 256)
    first, count = tiling(weight, x, gate=False), len(other_gpu)
    tilings._table.cache_clear()  # as in another process
    assert tiling(weight, x, gate=False) == first == other_gpu[-1] and len(other_gpu) == count
    assert list(first.__dict__.values()) in json.loads((tmp_path / "Other").read_text()).values()
    (tmp_path / "Other").write_text("{")
    tilings._table.cache_clear()
    tiling(weight, x, gate=False)
    assert len(other_gpu) == 2 * count

"""A machine is measured once, and each of its disks once."""

import json
from pathlib import Path

import pytest
import torch

from genwright.placement import machine, rates
from genwright.placement.machine import measure_disk, measure_rates, rate_at, this_machine

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Small measurements, kept in a folder of their own, where kernels would have to be compiled."""
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(machine, "attention_rate", lambda dtype: 1e9)
    monkeypatch.setattr(machine, "matmul_rate", lambda device, dtype, rows, side: 1e9 * rows)
    monkeypatch.setitem(machine.COPY, "cpu", 1 << 20)
    monkeypatch.setitem(rates.BUFFER, "cpu", 1 << 22)
    monkeypatch.setattr(machine, "FILE", 1 << 20)
    return tmp_path


def test_it_is_measured_once_and_every_disk_once(small: Path) -> None:
    told: list[str] = []
    first = this_machine(CPU, torch.float32, None, told.append)
    assert [line.split(";")[0] for line in told] == [
        "Measuring cpu",
        f"Measuring the disk of {small / 'home' / 'offload'}",
    ]
    assert this_machine(CPU, torch.float32, small / "not-yet-there", told.append) == first
    assert len(told) == 2
    assert not first.has_gpu
    for value in (first.rates.to_device, first.rates.to_host, first.rates.host_read, first.disk.read):
        assert 1e6 < value < 1e13
    assert set(first.rates.device_matmul) == {1, 8, 64, 512}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rates": {}, "disks": {}}'])
def test_a_file_of_another_version_is_measured_again(text: str, small: Path) -> None:
    this_machine(CPU, torch.float32, None)
    (kept,) = (small / "home" / "machines").iterdir()
    kept.write_text(text)
    told: list[str] = []
    this_machine(CPU, torch.float32, None, told.append)
    assert len(told) == 2 and json.loads(kept.read_text())["disks"]


def test_another_type_of_numbers_is_measured_for_itself(small: Path) -> None:
    this_machine(CPU, torch.float32, None)
    told: list[str] = []
    this_machine(CPU, torch.float64, None, told.append)
    assert len(told) == 2


def test_a_disk_is_left_as_it_was(small: Path) -> None:
    (small / "disk").mkdir()
    found = measure_disk(small / "disk")
    assert found.read > 0 and found.write > 0
    assert not list((small / "disk").iterdir())


def test_rates_between_those_measured() -> None:
    table = {1: 1e9, 100: 1e11, 10000: 1e11}
    assert rate_at(table, 1) == pytest.approx(1e9) and rate_at(table, 0.1) == pytest.approx(1e9)
    assert rate_at(table, 10) == pytest.approx(1e10)  # half-way, in logarithms
    assert rate_at(table, 1000) == pytest.approx(1e11) and rate_at(table, 1e6) == pytest.approx(1e11)


@pytest.mark.gpu
def test_a_gpu_is_faster_than_its_bus() -> None:
    found = measure_rates(torch.device("cuda", 0), torch.bfloat16)
    assert found.device_read > found.to_device > 0.9 * found.to_device_pageable
    assert found.device_matmul[4096] > found.host_matmul[512] and 0 < found.call < 1e-3

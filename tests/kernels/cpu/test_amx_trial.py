"""The program that tries AMX runs to its end, and reports what it found."""

import json
import sys

import pytest
import torch
from kernels.cpu.test_tile_linear import assert_close, emulate_amx, load, tiles

from genwright.kernels.cpu import amx_trial, amx_verdict, build, tile_linear
from genwright.kernels.cpu.amx import cpu_flags
from genwright.kernels.cpu.calls import runner

# With a smaller matrix, because emulated AMX is slow.
SMALL = """
import sys
from genwright.kernels.cpu import amx_trial
amx_trial.SIDE, amx_trial.TOKENS = 256, 32
amx_trial.main(*sys.argv[1:])
"""
pytestmark = pytest.mark.skipif(runner() is None, reason="no C++ compiler")


@pytest.mark.parametrize(
    "kind",
    [
        (8, False, "FLOATS", False, 32),  # int8
        (4, False, "FACTORS", True, 32),  # Q4_K
        (6, False, "FACTORS", False, 16),  # Q6_K
        (4, True, "HALVES", False, 32),  # IQ4_NL
    ],
)
def test_emulated_amx_gives_equal_products(kind, monkeypatch, tmp_path) -> None:
    emulate_amx(monkeypatch)
    monkeypatch.setattr(amx_verdict, "TRIAL", (sys.executable, "-c", SMALL))
    found = amx_verdict.trial(load(tmp_path, *kind)._name, *kind)
    assert found["equal"] is True and found["vnni"] > 0 and found["amx"] > 0


def test_where_amx_is_an_illegal_instruction_the_parent_works_on(monkeypatch, tmp_path) -> None:
    """The program as it is started, with AMX's own instructions, on a processor that lacks them but seems not to."""
    if "avx512_vnni" not in cpu_flags() or "amx_int8" in cpu_flags():
        pytest.skip("needs a processor that has AVX-512 with VNNI but not AMX")
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-mamx-tile", "-mamx-int8"))
    monkeypatch.setattr(tile_linear, "kernel", lambda *kind: load(tmp_path / "kernels", *kind))
    monkeypatch.setattr(amx_verdict, "has_amx_int8", lambda: True)
    weight, x = tiles("int8", 64, 64), torch.randn(32, 64)
    found = tile_linear.tile_operand(weight)
    assert found is not None
    assert_close(found.product(x, exact=False), x, weight)
    (kept,) = (tmp_path / "kernels").glob("amx-*.json")
    assert not json.loads(kept.read_text())["faster"] and "SIGILL" in json.loads(kept.read_text())["why"]


def test_one_wrong_product_is_found(monkeypatch, tmp_path) -> None:
    """AMX that fails once, in the last round."""
    count, multiply = 0, tile_linear.TileOperand.product

    def product(operand: tile_linear.TileOperand, x: torch.Tensor, **options: bool) -> torch.Tensor:
        nonlocal count
        count += 1
        y = multiply(operand, x, **options)
        y[-1, -1] += count == 2 * amx_trial.ROUNDS
        return y

    emulate_amx(monkeypatch)
    monkeypatch.setattr(amx_trial, "SIDE", 64)
    monkeypatch.setattr(amx_trial, "TOKENS", 64)
    monkeypatch.setattr(tile_linear.TileOperand, "product", product)
    kind = 8, False, "FLOATS", False, 32
    assert not amx_trial.compare(load(tmp_path, *kind), amx_trial.random_tiles(*kind))["equal"]
    assert count == 2 * amx_trial.ROUNDS


@pytest.mark.parametrize("name", ["int8", "int4:g64:asym", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_random_tiles_are_of_the_kind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's arguments give a matrix of which `tile_operand` asks for the same kernel."""
    asked: list[tuple[str | int, ...]] = []
    monkeypatch.setattr(tile_linear, "kernel", lambda *kind: asked.append(kind))
    tile_linear.tile_operand(tiles(name, 64, 256))
    tile_linear.tile_operand(amx_trial.random_tiles(*asked[0]))
    assert asked[0] == asked[1]

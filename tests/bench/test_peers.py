"""Peers tell their own weights, whatever ours are."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from genwright.bench.experiments import Experiment, Point, Traffic
from genwright.bench.measure import measure
from genwright.bench.peers import CompiledTransformers, LlamaCpp, Transformers
from genwright.bench.random_gguf import write_gguf
from genwright.bench.roofline import Roofline
from genwright.kernels.cpu.tile_packing import kernel
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.settings import EngineConfig


class Llama:
    """llama-cpp-python's class, as far as it is used."""

    def __init__(self, **settings: object):
        pass

    def reset(self) -> None:
        pass

    def set_seed(self, seed: int) -> None:
        pass

    def generate(self, prompt: list[int], **settings: float):
        yield from range(100)


def test_rows_have_the_format_and_bytes_of_their_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Llama))
    monkeypatch.setattr("genwright.bench.measure.measure_roofline", lambda *_: Roofline(1e10, 1e12))
    cfg = open_checkpoint("random:stories15m,layers=1").config
    write_gguf(cfg, "int4:asym", tmp_path / "model.gguf")
    point = Point(1, 4, 3)
    config = EngineConfig(device="cpu", dtype="float32", kv="int8")
    experiment = Experiment("tiny", str(tmp_path / "model.gguf"), config, "", (point,), 1)
    ours, llama, transformers = measure(experiment, peers=[LlamaCpp, Transformers])
    assert ours.dtype == ("float32" if kernel() is None else "5.0 bits")
    assert (llama.dtype, transformers.dtype) == ("Q4_1", "float32")

    def read(row):  # bytes of weights, and of cache, per step
        weights = row.weights_gbps / row.tokens_per_second * 1e9
        return weights, row.gbps / row.decode * 1e9 - weights

    parameters = sum(sizes(cfg))
    vectors = cfg.dim * (2 * cfg.layers + 1)
    assert read(ours)[0] == pytest.approx(read(transformers)[0])
    assert read(llama)[0] == pytest.approx(parameters * 20 / 32 + vectors * 4)
    keys_and_values = 2 * cfg.kv_dim * cfg.layers * point.mean_length
    assert read(llama)[1] == pytest.approx(keys_and_values * 2)
    assert read(transformers)[1] == pytest.approx(keys_and_values * 4)


def test_transformers_serves_by_continuous_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genwright.bench.measure.measure_roofline", lambda *_: Roofline(1e10, 1e12))
    # Its cache would fill most of the machine's memory, which takes a minute.
    handler = "transformers.generation.continuous_batching.cache.PagedAttentionMemoryHandler"
    monkeypatch.setattr(f"{handler}.get_available_memory", lambda self: 2 << 30, raising=False)
    traffic = Traffic(5, (4, 30), (3, 6))
    points = (traffic, replace(traffic, rate=20.0))
    config = EngineConfig(device="cpu", dtype="float32")
    experiment = Experiment("tiny", "random:stories15m,layers=1", config, "", points, 1)
    rows = measure(experiment, peers=[Transformers, CompiledTransformers])
    assert [(row.engine, row.rate) for row in rows[:4]] == [
        ("genwright", None),
        ("transformers", None),
        ("genwright", 20.0),
        ("transformers", 20.0),
    ]
    for row in rows[:4]:
        assert row.error is None
        assert row.total > 0
        assert row.ttft_p99 >= row.ttft_p50 > 0
        assert row.tbt_p50 > 0
    ours, theirs = (row.tokens_per_second / row.total for row in rows[:2])
    assert ours == pytest.approx(theirs)  # the same requests
    assert (rows[4].engine, rows[4].skipped) == ("transformers, compiled", True)


def sizes(cfg):
    """Parameters of the matrices that a step multiplies with."""
    yield cfg.vocab_size * cfg.dim
    for _ in range(cfg.layers):
        yield cfg.dim * (2 * cfg.q_dim + 2 * cfg.kv_dim + 3 * cfg.ffn_dim)

"""Settings: each wrong value is one sentence, and LLM, the command line and bench take the same ones."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from genwright import LLM, SamplingParams
from genwright.cli import bench, chat, generate
from genwright.errors import UserError
from genwright.text.cache.layout import CACHE_BITS
from genwright.text.settings import EngineConfig

TINY = "random:stories15m,layers=1"
WRONG = [
    ({"device": "tpu"}, "device must be auto, cpu, cuda or cuda:N, not 'tpu'."),
    ({"device": 3}, "device must be a text that is not empty, not 3."),
    ({"dtype": "int3"}, "dtype must be one of auto, float32, float16, bfloat16, not 'int3'."),
    ({"kv": None}, "kv must be one of auto, int8, int4, not None."),
    ({"quant": ""}, "quant must be a text that is not empty, not ''."),
    ({"deterministic": 1}, "deterministic must be true or false, not 1."),
    ({"max_context": 0}, "max_context must be a whole number between 1 and 1,073,741,824, not 0."),
    ({"max_context": 2.0}, "max_context must be a whole number between 1 and 1,073,741,824, not 2.0."),
    ({"speculate_k": 40}, "speculate_k must be a whole number between 1 and 32, not 40."),
    ({"speculate_k": True}, "speculate_k must be a whole number between 1 and 32, not True."),
    ({"backend": "cuda"}, "backend must be one of auto, torch, cpu, triton, inductor, not 'cuda'."),
    ({"gpu_mem": float("nan")}, "gpu_mem must be a number between 0.0 and 1,000,000.0, not nan."),
    ({"cpu_mem": -1}, "cpu_mem must be a number between 0.0 and 1,000,000.0, not -1."),
    (
        {"backend": "inductor", "deterministic": True},
        "The backend inductor has no deterministic mode; choose triton or torch.",
    ),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_value_is_one_sentence(given: dict[str, object], sentence: str) -> None:
    for make in (lambda: EngineConfig(**given), lambda: LLM(TINY, **given)):
        with pytest.raises(UserError) as caught:
            make()
        assert str(caught.value) == sentence


def test_numbers_of_numpy_and_paths_become_pythons_own() -> None:
    config = EngineConfig(max_context=np.int64(64), cpu_mem=2, draft=Path("a") / "b", deterministic=np.bool_(True))
    assert config == EngineConfig(max_context=64, cpu_mem=2.0, draft="a/b", deterministic=True)
    assert [type(value) for value in (config.max_context, config.cpu_mem, config.draft)] == [int, float, str]


def test_settings_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UserError, match=r"^There is no setting devcie; did you mean device\?$"):
        LLM(TINY, devcie="cpu")
    with pytest.raises(UserError, match=r"^There is no setting xyz; the settings are device, dtype, "):
        LLM(TINY, xyz=1)
    with pytest.raises(UserError, match=r"^config must be an EngineConfig, not 'cpu'; settings are keywords"):
        LLM(TINY, "cpu")


def test_keywords_go_over_a_config() -> None:
    base = EngineConfig(device="cpu", dtype="float32", kv="int8", backend="torch")
    llm = LLM(TINY, base, max_context=64, kv="int4")
    assert llm.config == EngineConfig(device="cpu", dtype="float32", kv="int4", backend="torch", max_context=64)
    assert (llm.max_context, llm.engine.executor.cache.spec.bits) == (64, 4)


@pytest.mark.parametrize("module", [generate, chat, bench])
def test_every_setting_is_a_flag_with_its_default(module) -> None:
    flags = {option.name: option for option in get_command(module.app).params}
    for each in fields(EngineConfig):
        flag = flags[each.name]
        assert flag.opts[0] == f"--{each.name.replace('_', '-')}"
        assert flag.help == each.metadata["help"]
        assert flag.default == (None if module is bench else each.default)


def test_flags_become_an_engine_config(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(generate, "load", lambda model, config: seen.append(config) or sys.exit(0))
    flags = "--kv int8 --max-context 64 --no-graph --cpu-mem 2 --deterministic --speculate-k 3 --backend torch"
    with pytest.raises(SystemExit):
        generate.app(["x", *flags.split()], standalone_mode=False)
    assert seen == [
        EngineConfig(
            kv="int8", max_context=64, graph=False, cpu_mem=2, deterministic=True, speculate_k=3, backend="torch"
        )
    ]


def test_every_choice_is_known_to_what_reads_it() -> None:
    choices = {each.name: each.metadata["choices"] for each in fields(EngineConfig)}
    assert choices["kv"] == tuple(CACHE_BITS)
    for backend in ("auto", "torch", "cpu"):
        assert LLM(TINY, device="cpu", max_context=64, backend=backend).generate(
            [[1]], SamplingParams(max_new_tokens=1)
        )
    for backend in ("triton", "inductor"):
        with pytest.raises(UserError, match=f"The backend {backend} needs an NVIDIA GPU"):
            LLM(TINY, device="cpu", backend=backend)


def test_settings_import_no_torch() -> None:
    code = "import sys, genwright.text.settings, genwright.bench.experiments; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

"""bf16 on a processor with broken AMX: oneDNN does not use it, in any order of importing torch and genwright."""

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from text.families import make
from torch.backends import mkldnn

from genwright.kernels.cpu import amx

RUN = """
print("<begin>", flush=True)
from genwright import LLM, SamplingParams
llm = LLM({folder!r}, device="cpu", dtype="bfloat16")
assert len(llm.logits(list(range(1, 100)))) == 99
assert len(llm.generate([[1, 2, 3]], SamplingParams(max_new_tokens=4, ignore_eos=True))[0].ids) == 4
print("<end>", flush=True)
"""
TORCH_FIRST = "import torch\n"
LINEAR_FIRST = TORCH_FIRST + "torch.nn.functional.linear(torch.ones(8, 64), torch.ones(64, 64))\n"
BROKEN = "from genwright.kernels.cpu import amx\namx.amx_is_broken = lambda: True\n"
# The same before genwright/__init__.py runs: its import then finds this module.
BROKEN_AT_IMPORT = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("genwright.kernels.cpu.amx", {amx.__file__!r})
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.amx_is_broken = lambda: True
import genwright
"""


def python(script: str, **environment: str) -> str:
    """Run a script in a new interpreter, and return what it and oneDNN printed."""
    kept = {key: value for key, value in os.environ.items() if key != "ONEDNN_MAX_CPU_ISA"}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**kept, **environment}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("llama")
    make("llama", folder)
    return RUN.format(folder=str(folder))


def products(script: str) -> list[str]:
    """oneDNN's bf16 operations while the model runs."""
    said = python(script, ONEDNN_VERBOSE="1").split("<begin>")[1].split("<end>")[0]
    return [
        line for line in said.splitlines() if line.startswith("onednn_verbose") and "exec" in line and "bf16" in line
    ]


def test_onednn_is_disabled_if_torch_was_imported_first(run: str) -> None:
    assert products(LINEAR_FIRST + BROKEN + run) == []


@pytest.mark.parametrize("first", ["", TORCH_FIRST, LINEAR_FIRST], ids=["genwright", "torch", "linear"])
def test_no_order_of_imports_crashes(first: str, run: str) -> None:
    used = products(first + run)
    if amx.has_bf16() and not amx.amx_is_broken():  # long prompts then use torch, and torch uses oneDNN for bf16
        assert used


def test_onednn_is_limited_if_genwright_was_imported_first() -> None:
    show = "import os\nprint(os.environ.get('ONEDNN_MAX_CPU_ISA'))\n"
    assert python(BROKEN_AT_IMPORT + show).strip() == "AVX512_CORE_FP16"
    assert python(BROKEN_AT_IMPORT + show, ONEDNN_MAX_CPU_ISA="AVX2").strip() == "AVX2"  # the user's setting
    if not amx.amx_is_broken():
        assert python("import genwright\n" + show).strip() == "None"


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets a test fake a processor; the cached result is cleared afterwards."""
    amx.amx_is_broken.cache_clear()
    yield monkeypatch
    amx.amx_is_broken.cache_clear()


@pytest.mark.parametrize(
    ("flags", "machine", "leaves", "broken"),
    [
        ({"avx512_bf16"}, "x86_64", {}, False),
        ({"amx_tile", "amx_bf16"}, "x86_64", {(0x1D, 0): 1, (0x1D, 1): 0x4002000}, False),
        ({"amx_tile", "amx_bf16"}, "x86_64", {(0x1D, 0): 1, (0x1D, 1): 0}, True),
        ({"amx_tile", "amx_bf16"}, "x86_64", {(0x1D, 0): 0, (0x1D, 1): 0}, True),
        ({"amx_tile"}, "aarch64", {}, False),
        (set(), "x86_64", {}, False),
    ],
)
def test_amx_is_broken_if_reported_without_a_tile_shape(flags, machine, leaves, broken, processor) -> None:
    processor.setattr(amx, "cpu_flags", lambda: frozenset(flags))
    processor.setattr(platform, "machine", lambda: machine)
    processor.setattr(amx, "cpuid_eax", lambda *leaf: leaves[leaf])
    assert amx.amx_is_broken() is broken
    assert amx.has_bf16() is ("avx512_bf16" in flags or ("amx_bf16" in flags and not broken))


@pytest.mark.parametrize(
    ("flags", "broken", "refused", "usable"),
    [
        ({"amx_tile", "amx_int8"}, False, 0, True),
        ({"amx_tile", "amx_int8"}, True, 0, False),
        ({"amx_tile", "amx_int8"}, False, -1, False),
        ({"amx_tile", "amx_bf16"}, False, 0, False),
    ],
)
def test_int8_needs_the_flag_the_shape_and_the_permission(flags, broken, refused, usable, monkeypatch) -> None:
    monkeypatch.setattr(amx, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(amx, "amx_is_broken", lambda: broken)
    monkeypatch.setattr(amx, "arch_prctl", lambda *request: refused)
    assert amx.has_amx_int8.__wrapped__() is usable


@pytest.mark.skipif(platform.machine() != "x86_64" or platform.system() != "Linux", reason="a system call of Linux")
def test_the_system_refuses_a_permission_that_does_not_exist() -> None:
    assert amx.arch_prctl(0x1023, 63) == -1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is x86's")
def test_cpuid_agrees_with_proc_cpuinfo() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    said = {line.split(":")[0].strip(): line.split(":")[1].strip() for line in lines if ":" in line}
    signature = amx.cpuid_eax(1, 0)
    family, model = signature >> 8 & 15, signature >> 4 & 15 | signature >> 12 & 0xF0
    assert signature & 15 == int(said["stepping"])
    assert family + (signature >> 20 & 255 if family == 15 else 0) == int(said["cpu family"])
    assert model == int(said["model"])
    assert amx.cpu_model() == said["model name"]
    assert amx.cpuid_eax(0, 0) >= 1


def test_amx_counts_as_broken_if_cpuid_cannot_be_read(processor) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError

    processor.setattr(amx.mmap, "mmap", forbidden)
    processor.setattr(amx, "cpu_flags", lambda: frozenset({"amx_tile"}))
    processor.setattr(platform, "machine", lambda: "x86_64")
    assert amx.amx_is_broken()


def test_flags_are_empty_without_cpuinfo(processor) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    processor.setattr(amx.Path, "read_text", missing)
    assert amx.cpu_flags.__wrapped__() == frozenset()
    assert amx.cpu_model() == ""


@pytest.mark.parametrize("torch_first", [True, False])
@pytest.mark.parametrize("broken", [True, False])
def test_onednn_is_disabled_only_if_needed_and_restored_afterwards(torch_first, broken, monkeypatch) -> None:
    monkeypatch.setattr(amx, "_TORCH_IMPORTED_FIRST", torch_first)
    monkeypatch.setattr(amx, "amx_is_broken", lambda: broken)
    assert mkldnn.enabled
    with pytest.raises(ZeroDivisionError), amx.without_broken_amx():
        assert torch._C._get_mkldnn_enabled() is not (torch_first and broken)
        raise ZeroDivisionError
    assert mkldnn.enabled

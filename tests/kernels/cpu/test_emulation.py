"""The kernels compiled for ARM and run by an emulator, against float64."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels.cpu import test_attention
from kernels.cpu.test_tile_linear import assert_close, tiles
from torch.nn.functional import linear

from genwright.kernels.cpu import attention, build, fused_linear, operand, tile_linear
from genwright.kernels.cpu.calls import runner
from genwright.quant.formats import parse_format
from genwright.quant.packed import Packed
from genwright.quant.tiles import Table

GCC, CLANG = ("aarch64-linux-gnu-g++",), ("clang++", "--target=aarch64-linux-gnu")
TARGETS = {
    "no dot products": (*GCC, "-march=armv8-a"),
    "dot products": (*GCC, "-march=armv8.2-a+dotprod"),
    "dot products of mixed signs": (*GCC, "-march=armv8.6-a+i8mm+bf16"),
    "clang": (*CLANG, "-march=armv8.4-a"),
}
EMULATOR = ("qemu-aarch64", "-cpu", "max", "-L", "/usr/aarch64-linux-gnu")
needed = (*GCC, EMULATOR[0])
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, needed)) or runner() is None, reason=f"needs {' and '.join(needed)}"
)
Emulate = Callable[..., None]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "emulated_call"
    subprocess.run([*GCC, "-rdynamic", "-o", path, Path(__file__).with_name("emulated_call.cpp")], check=True)
    return path


@pytest.fixture(params=TARGETS)
def emulate(request: pytest.FixtureRequest, program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Emulate:
    """Let a module's kernel calls be made by the emulator."""
    compiler, *target = TARGETS[request.param]
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    others = [flag for flag in build.FLAGS if flag not in ("-O3", build.NATIVE)]

    modules = attention, fused_linear, operand, tile_linear

    def start(source: str, weight: Iterable[torch.Tensor] = (), **macros: Any) -> None:
        """`weight`: the tensors that a call's arguments point to besides those that the caller names."""
        with monkeypatch.context() as patch:
            patch.setattr(build, "FLAGS", ("-O1", *target, *others))
            patch.setenv("CXX", compiler)
            library = build.build(tmp_path, source, **macros)
        assert library is not None

        def call(
            function: str, arguments: ctypes.Structure, _: int, recording: None, *tensors: torch.Tensor | None
        ) -> None:
            memory = {tensor.data_ptr(): tensor for tensor in (*weight, *tensors) if tensor is not None}
            _run((*EMULATOR, program, library, function), tmp_path / "call", arguments, memory)

        for module in modules:
            monkeypatch.setattr(module, "make_call", call, raising=False)

    for module in modules:
        monkeypatch.setattr(module, "address", lambda library, name: name, raising=False)
    return start


def _run(command: Iterable[Any], file: Path, arguments: ctypes.Structure, memory: dict[int, torch.Tensor]) -> None:
    """Hand over the arguments with the memory that they point to, and copy the memory back."""
    words = struct.unpack(f"{ctypes.sizeof(arguments) // 8}q", bytes(arguments))
    pieces = [(8 * i, memory[word]) for i, word in enumerate(words) if word in memory]
    with file.open("wb") as stream:
        stream.write(struct.pack("q", ctypes.sizeof(arguments)) + bytes(arguments))
        for offset, tensor in pieces:
            size = _size(tensor)
            stream.write(struct.pack("qq", offset, size) + ctypes.string_at(tensor.data_ptr(), size))
    subprocess.run([*command, file], check=True)
    result, at = file.read_bytes(), 8 + ctypes.sizeof(arguments)
    for _, tensor in pieces:
        at += 16
        ctypes.memmove(tensor.data_ptr(), result[at : at + _size(tensor)], _size(tensor))
        at += _size(tensor)


def _size(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the storage."""
    return tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize


@pytest.mark.parametrize("name", ["int8", "Q5_K", "IQ4_XS"])
def test_tiles(emulate: Emulate, name: str) -> None:
    torch.manual_seed(0)
    for outputs, inputs in ((3, 5), (97, 333)) if name.startswith("int") else ((37, 512),):
        weight = tiles(name, outputs, inputs)
        found = tile_linear.tile_operand(weight)
        assert found is not None
        where = [*weight.tensors().values()]
        if found._table is not None:
            where.append(torch.frombuffer(found._table, dtype=torch.uint8))
        scales = tile_linear.SCALES[weight.scales.dtype]
        kind = {"BITS": weight.bits, "TABLE": int(weight.table is not None), "SCALES": scales}
        kind |= {"MINIMUMS": int(weight.minimums is not None), "GROUP": 16 if weight.group == 16 else 32}
        emulate("tile_linear", where, **kind)
        x = torch.randn(9, inputs) * torch.rand(inputs)
        for exact in (False, True):
            for tokens in (1, 9):
                assert_close(found.product(x[:tokens], exact=exact), x[:tokens], weight, exact, narrow=True)
        if weight.table is None:  # a look-up has its own copy of that
            rows = torch.tensor([outputs - 1, 0, 2])
            looked_up = tile_linear.look_up(rows, Table(**vars(weight)))
            assert looked_up is not None
            torch.testing.assert_close(looked_up, weight.dequantize(torch.float32)[rows])


@pytest.mark.parametrize("emulate", ["dot products"], indirect=True)
@pytest.mark.parametrize("name", ["Bf16", "int8:g24", "int4:g40:asym", "fp8"])
def test_rows(emulate: Emulate, name: str) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if name == "Bf16" else torch.float32
    for outputs, inputs in ((3, 5), (97, 333)):
        x, weight = torch.randn(7, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
        packed = parse_format(name).quantize(weight) if name[0].islower() else weight
        found = fused_linear.operand(x, packed)
        assert found is not None
        where = [*packed.tensors().values()] if isinstance(packed, Packed) else [packed]
        scales = "MINIMUMS" if "asym" in name else "GROUPS" if name in ("int8:g24", "fp8") and inputs > 128 else "ROWS"
        emulate("fused_linear", where, FORMAT=name.split(":")[0].capitalize(), SCALES=scales)
        wide = (packed.dequantize(torch.float32) if isinstance(packed, Packed) else packed).double()
        for tokens in (1, 7):
            error = found.product(x[:tokens]).double() - linear(x[:tokens].double(), wide)
            assert error.abs().max() < (2e-2 if dtype == torch.bfloat16 else 3e-6) * inputs**0.5


@pytest.mark.parametrize("emulate", ["clang"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_and_rope(emulate: Emulate, dtype: torch.dtype) -> None:
    macros = {"FORMAT": attention.FORMATS[dtype], "DIM": 64, "PAGE": test_attention.PAGE}
    emulate("attention", **macros)
    test_attention.test_attention_equals_float64(9, 3, 64, dtype, 40)
    test_attention.test_rope_and_cache_write_equal_torch(9, 3, 64, dtype)

"""Compile CUDA C++ at run time, cache the machine code on disk, and launch it."""

import ctypes
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from genwright.home import keep, kernel_file
from genwright.kernels.compile_ahead import dry_run_compiler

_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_PROGRAMMATIC_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_MAP_ALIGNMENT = 64  # bytes
_BYTES, _SWIZZLE_128, _PROMOTION_256 = 0, 3, 3  # of a tensor map: its type, and two of its modes


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


class _Map(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 16)]


@dataclass(frozen=True)
class TensorMap:
    """Where TMA, Hopper's Tensor Memory Accelerator, finds boxes of a tensor of bytes; the nearest dimension first."""

    first: int  # address
    sizes: tuple[int, ...]
    strides: tuple[int, ...]  # of all dimensions but the first, whose bytes are next to each other
    box: tuple[int, ...]


Argument = torch.Tensor | int | float | Sequence[TensorMap | None] | None


class Kernel:
    """A compiled CUDA kernel."""

    def __init__(self, code: bytes, name: str):
        self._driver = _driver()
        self._shared = 0  # bytes of dynamic shared memory requested from the driver so far
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self._driver.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
        _check(
            self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()), "cuModuleGetFunction"
        )

    def __call__(
        self,
        grid: int | tuple[int, int, int],
        threads: int,
        arguments: Sequence[Argument],
        shared: int = 0,
        dependent: bool = False,
    ) -> None:
        """Launch on the current stream; a `dependent` kernel may start before the previous one ends (PDL)."""
        if shared > self._shared:
            _check(self._driver.cuFuncSetAttribute(self._function, _DYNAMIC_SHARED, shared), "cuFuncSetAttribute")
            self._shared = shared
        values = [_as_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        attribute = _Attribute(_PROGRAMMATIC_SERIALIZATION, b"", 1)
        stream = torch.cuda.current_stream().cuda_stream
        grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
        launch = _Launch(grid, (threads, 1, 1), shared, stream, ctypes.pointer(attribute), int(dependent))
        _check(self._driver.cuLaunchKernelEx(ctypes.byref(launch), self._function, pointers, None), "cuLaunchKernelEx")


def compiled_kernel(device: int, name: str, **defines: int) -> Callable[..., None]:
    """The function `name` of name.cu for the current device, whose index is `device`; compiled code is kept on disk.

    In a dry run a thread compiles it, and a call does not launch it.
    """
    compiler = dry_run_compiler()
    if compiler is None:
        return _loaded_kernel(device, name, **defines)
    program = Program.of(name, torch.cuda.get_device_capability(), defines)
    compiler.submit(program, program.code)
    return _launch_nothing


@cache
def _loaded_kernel(device: int, name: str, **defines: int) -> Kernel:
    program = Program.of(name, torch.cuda.get_device_capability(), defines)
    try:
        return Kernel(program.code(), name)
    except RuntimeError:  # the file is damaged
        return Kernel(program.compile(), name)


def _launch_nothing(*_: object, **__: object) -> None:
    """Takes the place of a kernel in a dry run."""


@dataclass(frozen=True)
class Program:
    """A CUDA C++ file and the options that it is compiled with."""

    name: str
    options: tuple[str, ...]

    @staticmethod
    def of(name: str, capability: tuple[int, int], defines: Mapping[str, int]) -> "Program":
        major, minor = capability
        own = "a" if major == 9 else ""  # with the instructions that only Hopper has
        options = (f"--gpu-architecture=sm_{major}{minor}{own}", "--std=c++17", "--use_fast_math")
        return Program(name, (*options, *(f"-D{key}={int(value)}" for key, value in defines.items())))

    def code(self) -> bytes:
        """The machine code, from the cache folder or compiled; threads that want the same code wait for one of them."""
        own: Future[bytes] = Future()
        first = _codes.setdefault(self, own)
        if first is own:
            try:
                own.set_result(self._read())
            except BaseException as error:
                del _codes[self]  # the next to ask tries again
                own.set_exception(error)
        return first.result()

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError:
            return self.compile()

    def compile(self) -> bytes:
        """Compile the program, whether or not the cache folder has it, and keep the machine code there."""
        code = _compile(self._source, _headers(), self.options)
        keep(self._path, code)
        return code

    @property
    def _source(self) -> str:
        return (files(__package__) / f"{self.name}.cu").read_text()

    @property
    def _path(self) -> Path:
        parts = str(torch.version.cuda), *_headers().values(), self._source, *self.options
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return kernel_file(f"{self.name}-{digest[:32]}.cubin")


_codes: dict[Program, "Future[bytes]"] = {}


@cache
def _headers() -> dict[str, str]:
    found = (file for file in files(__package__).iterdir() if file.name.endswith(".cuh"))
    return {file.name: file.read_text() for file in sorted(found, key=lambda file: file.name)}


@cache
def multiprocessors(device: int) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_memory(device: int) -> int:
    """Bytes of shared memory that a block can have: those of a multiprocessor, of which each block costs 1,024."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor) - 1024


def _compile(source: str, headers: Mapping[str, str], options: Sequence[str]) -> bytes:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    strings = ctypes.c_char_p * len(headers)
    texts, names = (strings(*(text.encode() for text in texts)) for texts in (headers.values(), headers))
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", len(headers), texts, names)
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed, size = nvrtc.nvrtcCompileProgram(program, len(options), arguments), ctypes.c_size_t()
    if failed:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"NVRTC failed to compile a CUDA kernel: {log.value.decode(errors='replace')}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


@cache
def _nvrtc() -> ctypes.CDLL:
    """The NVRTC that PyTorch uses: already loaded, or in one of the nvidia wheels next to torch."""
    major = str(torch.version.cuda).partition(".")[0]
    wheels = Path(torch.__file__).parent.parent / "nvidia"
    names = [f"libnvrtc.so.{major}", *map(str, sorted(wheels.glob(f"*/lib/libnvrtc.so.{major}*")))]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError(f"No libnvrtc.so.{major} was found next to PyTorch; install the nvidia-cuda-nvrtc package.")


@cache
def _driver() -> ctypes.CDLL:
    torch.cuda.init()
    return ctypes.CDLL("libcuda.so.1")


@lru_cache(4096)
def _encoded(tensor: TensorMap | None) -> _Map:
    if tensor is None:
        return _Map()
    room = ctypes.create_string_buffer(ctypes.sizeof(_Map) + _MAP_ALIGNMENT)
    found = _Map.from_buffer(room, -ctypes.addressof(room) % _MAP_ALIGNMENT)
    rank = len(tensor.sizes)
    code = _driver().cuTensorMapEncodeTiled(
        ctypes.byref(found), _BYTES, rank, ctypes.c_void_p(tensor.first), (ctypes.c_uint64 * rank)(*tensor.sizes),
        (ctypes.c_uint64 * (rank - 1))(*tensor.strides), (ctypes.c_uint32 * rank)(*tensor.box),
        (ctypes.c_uint32 * rank)(*[1] * rank), 0, _SWIZZLE_128, _PROMOTION_256, 0,
    )  # fmt: skip
    _check(code, "cuTensorMapEncodeTiled")
    return found


def _as_argument(value: Argument) -> Any:
    if isinstance(value, Sequence):
        return (_Map * len(value))(*map(_encoded, value))
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA driver call {what} failed: {(text.value or b'unknown error').decode()}")

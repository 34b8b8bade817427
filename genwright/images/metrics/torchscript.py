"""Read the tensors of a TorchScript archive by name, without compiling or running its code.

The archive's data.pkl is a pickled tree of modules, whose classes are defined in the archive. Here every such class
becomes a plain object with attributes, and the unpickler calls no functions but those that build tensors.
"""

import pickle
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

DTYPES = {"FloatStorage": torch.float32, "HalfStorage": torch.float16, "LongStorage": torch.int64}


def is_torchscript(path: Path) -> bool:
    """Whether a file is an archive that torch.jit.save wrote."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(PurePosixPath(name).name == "constants.pkl" for name in archive.namelist())


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Every parameter and buffer, named as in the module's state_dict."""
    with zipfile.ZipFile(path) as archive:
        member = next(name for name in archive.namelist() if PurePosixPath(name).name == "data.pkl")
        with archive.open(member) as file:
            module = _Unpickler(file, archive, member.removesuffix("data.pkl")).load()
    return dict(_tensors(module))


class _Module:
    """A module's attributes, whatever its class is in the archive."""

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, archive: zipfile.ZipFile, prefix: str):
        super().__init__(file)
        self.archive, self.prefix = archive, prefix

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__"):
            return _Module
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if (module, name) in _FUNCTIONS:
            return _FUNCTIONS[module, name]
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a file of weights")

    def persistent_load(self, key: Any) -> Tensor:
        _, dtype, name, *_ = key
        data = bytearray(self.archive.read(f"{self.prefix}data/{name}"))
        return torch.frombuffer(data, dtype=dtype)


def _strided(storage: Tensor, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return torch.as_strided(storage, shape, stride, offset)  # raises an error for what lies outside the storage


_FUNCTIONS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _strided,
    ("collections", "OrderedDict"): dict,
    # Lists, and values that are tagged with their type.
    ("torch.jit._pickle", "build_intlist"): list,
    ("torch.jit._pickle", "build_doublelist"): list,
    ("torch.jit._pickle", "build_boollist"): list,
    ("torch.jit._pickle", "build_tensorlist"): list,
    ("torch.jit._pickle", "restore_type_tag"): lambda value, tag: value,
}


def _tensors(module: _Module) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    for name, value in module.attributes.items():
        if isinstance(value, Tensor):
            found.append((name, value))
        elif isinstance(value, _Module):
            found += [(f"{name}.{inner}", tensor) for inner, tensor in _tensors(value)]
    return found

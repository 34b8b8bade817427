"""Adapters, under the research system's names: they create a project's objects and run its interfaces by name.

Generated scripts take everything from `Inspection.adapters.custom_adapters.NAME`; such a module is made from the
manifest NAME, and holds what a generated adapter holds: `sys`, `os`, `ENV_DIR`, the public names of the project's
modules, and `CustomAdapter`.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genwright.home import cache_folder
from genwright.inspect.run.dispatch import Dispatch, places, snake_case
from genwright.inspect.run.named_manifests import find_manifest

PACKAGE = "Inspection.adapters.custom_adapters"


@dataclass
class ExecutionResult:
    """What a call of an interface gave; the fields are spelt as generated adapters spell them."""

    fuc_name: str = ""
    is_success: bool = False
    fail_reason: str = ""
    is_file: bool = False
    file_path: str = ""
    except_data: Any = None
    interface_return: Any = None

    def set_result(
        self,
        fuc_name: str,
        is_success: bool,
        fail_reason: str,
        is_file: bool,
        file_path: str,
        except_data: Any,
        interface_return: Any,
    ) -> None:
        """Set every field."""
        self.fuc_name, self.is_success, self.fail_reason = fuc_name, is_success, fail_reason
        self.is_file, self.file_path = is_file, file_path
        self.except_data, self.interface_return = except_data, interface_return


class BaseAdapter(ABC):
    """What an adapter does; `result` is that of the last call."""

    def __init__(self) -> None:
        self.result = ExecutionResult()

    @abstractmethod
    def create_interface_objects(self, interface_class_name: str = "", **kwargs: Any) -> None:
        """Create an object of a class of the project and keep it."""

    @abstractmethod
    def run(self, dispatch_key: str, **kwargs: Any) -> None:
        """Call an interface by its name."""


class ManifestAdapter(BaseAdapter):
    """An adapter of the project that a manifest describes.

    The objects that were created are its attributes: `chat` is that of class `Chat`, and a name that no class has means
    the last object. Setting one puts it in the place of the object that was created.
    """

    project = ""

    def __init__(self, dispatch: Dispatch | None = None) -> None:
        super().__init__()
        self.__dict__["dispatch"] = dispatch or Dispatch(self.project, find_manifest)

    def create_interface_objects(self, interface_class_name: str = "", **kwargs: Any) -> None:
        name = interface_class_name or self.dispatch.only_class()
        made = self.dispatch.resolve(name)(**kwargs)
        self.dispatch.keep(name, made)
        self.result = ExecutionResult("create_interface_objects", True, interface_return=made)

    def run(self, dispatch_key: str, **kwargs: Any) -> None:
        _, _, target = self.dispatch.find(dispatch_key)
        self.result = ExecutionResult(dispatch_key, True, interface_return=target(**kwargs))

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__["dispatch"].held() if "dispatch" in self.__dict__ else {}
        for owner, made in held.items():
            if snake_case(owner) == name:
                return made
        if held and not name.startswith("__"):
            return next(iter(held.values()))
        raise AttributeError(f"No object was created that {name!r} could mean.")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "result":
            self.__dict__[name] = value
        else:
            self.dispatch.keep(self.dispatch.class_named(name, value), value)


class AdapterFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules `Inspection.adapters.custom_adapters.NAME` from manifests."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A module of the package whose name has a manifest in this folder or beside the script."""
        package, _, name = fullname.rpartition(".")
        if package != PACKAGE or _manifest(name) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill the module with what a generated adapter holds."""
        name = module.__name__.rpartition(".")[2]
        manifest = _manifest(name)
        assert manifest is not None
        if manifest.root and Path(manifest.root).is_dir():
            # Generated adapters work in their project's folder.
            sys.path.insert(0, manifest.root)
            os.chdir(manifest.root)
        for origin in dict.fromkeys(i.module for i in manifest.interfaces if i.module):
            vars(module).update(_public(importlib.import_module(origin)))
        folder = cache_folder() / "environments" / name
        folder.mkdir(parents=True, exist_ok=True)
        adapter = type("CustomAdapter", (ManifestAdapter,), {"project": name, "__doc__": ManifestAdapter.__doc__})
        vars(module).update(sys=sys, os=os, ENV_DIR=f"{folder}/", CustomAdapter=adapter)
        vars(module).update(BaseAdapter=BaseAdapter, ExecutionResult=ExecutionResult)


def _manifest(name: str) -> Any:
    return find_manifest(name, places())


def _public(module: types.ModuleType) -> dict[str, Any]:
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    return {name: getattr(module, name) for name in names}
